"""Real engines and daemons under load while they are killed, paused, cut off and filled up.

sites.py     the processes, and a proxy on every link between them
faults.py    what goes wrong and when: a schedule drawn from a seed
traffic.py   writers and group consumers in every region, and what they were told
run.py       all of it together, with a line of progress every few seconds and a table at the end

tests/oracle/verdict.py judges what the regions hold in the end by what the clients were told.
"""
