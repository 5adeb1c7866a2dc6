"""A deterministic simulation of replication: seeded users, seeded network, real engines.

The engines are real because the answers that count are theirs: what XTRIM, XSETID and the Lua functions do
with a strand *is* the protocol, and a stand-in would be a second opinion about it. What is simulated is
everything between them: which request goes next, which is lost, which comes late or twice, and what the
clocks say. One process, one thread, one die: a seed is a run.

Clocks are an hour ahead or behind, as the dice say. Users add with milliseconds of their own, which generate
as `*` does, and our functions are given the time instead of asking the engine (libfaketime cannot be used:
both engines' allocator, jemalloc, asks for the time before the library is ready, and they hang).

    clock.py       our functions with a clock that is told
    seat.py        a region's engine, with one connection
    network.py     links as coroutines that stop before every request; the die says which one goes on
    witness.py     does what a user says, and notes what was seen before and after
    replicas.py    replicas that lag and are promoted
    users.py       what people do in their regions
    producers.py   idempotent producers that lose replies and go on elsewhere
    logs.py        users of a log, in some of the runs, with a die and links of their own
    chores.py      entries for later and retention, in some of the runs, with a die of their own
    rounds.py      the end of a storm: links run until nothing moves
    simulator.py   a run: two hundred operations, then quiescence, then every question in every region
"""
