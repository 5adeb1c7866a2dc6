"""The same commands to a one-region braidstream and to the bare engine, compared reply for reply.

    generator: Dice -> sequence()         what to say; IDs that engines generate stand in it as symbols
          |
       script: Step, Ref                  only data: any step can be dropped, so shrinking is simple
          |
       runner: Run                        each step to both sides (`sides`), ours first
          |
    our reply --`mapping`-->  ==  bare reply        else Mismatch, which `shrink` makes small and tells

What must differ is mapped, never ignored. Generated IDs are read off the clock, so every XADD that both
sides accept pairs (bare ID, our ID); our replies are translated by these pairs before they are
compared, and later commands name entries by `Ref`, so that each side gets its own ID.

Most scripts run in a region in liberal mode; some in strict mode, where a stream has one strand and the
engine's own newer commands are used.

Groups have their own words (`group_words`) and their own comparison (`group_replies`): delivery counts
are equal, times are as near as the two sides were asked. Idempotent production has `message_words`.

Commands that the bare engine lacks are answered by a naive `model` (and `model_reads`), which does to it
what they would. Entries given back have a stand-in as their owner there, whom `nobody` keeps out of replies.

`deviations` lists all else that differs on purpose. None is skipped: each has a contract, which is
checked in place of equality.
"""

from tests.oracle.differential.generator import sequence
from tests.oracle.differential.report import Mismatch, Tally
from tests.oracle.differential.script import Script
from tests.oracle.differential.shrink import compare
from tests.oracle.differential.sides import Servers

__all__ = ["Mismatch", "Script", "Servers", "Tally", "compare", "sequence"]
