"""An engine restarts without any part of its data: a seeded search on three regions and real servers.

Upstream faults show that an engine may lose anything: Redis 7.0 and Valkey 8.0 drop every MULTI of an AOF if
the default user is off. So the dice choose what is gone: entries at the head, in the middle or at the end of
any strand, keys, parts of a journal, fields of a registry, groups of one strand. The engine is killed and
starts from what is left. Clients go on at once, then links meet again.

    users.py     what clients do in all regions, and which entries their commands removed
    damage.py    what an engine loses
    links.py     links as the daemons run them, sweep after sweep; after each step the healthy regions are
                 looked at
    promises.py  what must hold in the end
    run.py       a run: a seed is a run

What is promised. A region is healthy if its engine lost nothing.

    deleted     A healthy region never removes an entry that no command has removed.
    missing     An entry is in all regions in the end if no command has removed it, and a healthy region had
                it at the loss, or the damaged one still has it, or it was acknowledged after the loss.
    differ      After two sweeps all regions are alike, and a third one changes nothing.
    came back   An entry that a command removed stays away if the removal was made in a healthy region, or had
                reached one, or was made after the loss. One that only the damaged region knew may be undone;
                so may its trims after the loss, until links have looked: no record tells them from losses.
    skipped     A group gets every entry that no region has acknowledged for it, in every region.
    no group    A group that a healthy region knew exists in all regions.
    refused     After two sweeps no link and no command fails.

A trim in the damaged region, between the loss and the sweeps, also covers what the region has lost below it:
a trim removes the oldest, and these are older. So does a DEL, of all that the region has lost.
"""
