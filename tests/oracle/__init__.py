"""What is right: the one library that tests ask for it.

    history.py        what happened in several regions, as a list of facts (the simulation writes it)
    convergence.py    what all regions must come to, from a history
    client_log.py     what clients did, and the replies they got (the soak writes it)
    anomalies.py      what must never happen, each by its name; `find(history)`
    answers.py        what regions answer in the end, compared with each other and with ID order
    verdict.py        the same names for a client log and what the regions hold in the end; `judge(log, ...)`
    stream.py         the naive stream with its groups, one list of entries
    room.py           how much of a reply fits under MAXCOUNT and MAXSIZE
    group_checks.py   what must always be seen of a stream's groups: invariants for a state machine
    differential/     the same commands to a region and to the bare engine, reply for reply

Nothing here starts a server, but for the differential's two. Its own tests stand beside it.
"""
