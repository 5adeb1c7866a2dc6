"""Two clusters and a server under load, while slots move and primaries are killed.

regions.py   the regions; how slots of a cluster move, and how a primary is killed and comes back
run.py       all of it together with the traffic of tests/long/soak, and the verdict at the end
"""
