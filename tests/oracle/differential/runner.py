"""One script on both sides: say, compare, note what was done."""

import time

from tests.oracle.differential.deviations import ASKING, KNOWN, MISSING, Deviations, SequenceEnds, facts
from tests.oracle.differential.group_replies import GroupReplies
from tests.oracle.differential.mapping import BARE, OURS, Mapping
from tests.oracle.differential.model import Model, is_modelled, is_understood, is_unknown
from tests.oracle.differential.nobody import retold
from tests.oracle.differential.report import Mismatch, Tally, same
from tests.oracle.differential.script import (
    GROUPS,
    MOVES,
    PLAIN_WRITES,
    Argv,
    Call,
    Mode,
    Script,
    Step,
    command_of,
    forget,
    generates,
    has_cap,
    names_read,
    reads_twice,
    sees_groups,
    unmakes,
    upper,
    with_exact_cap,
)
from tests.oracle.differential.sides import Fault, Reply, Servers


class Run:
    """One script, from empty servers. `all` raises Mismatch where the sides differ."""

    def __init__(self, servers: Servers, script: Script, tally: Tally) -> None:
        self.script = script
        self.sides = servers.reset(script.protocol, script.node_entries, script.id_mode)
        self._tally, self._mapping = tally, Mapping(strict=script.id_mode == "strict")
        self._deviations = Deviations(self.sides, self._mapping, tally)
        self._model = Model(self.sides, self._mapping, self._deviations, script.protocol)
        self._groups = GroupReplies(self.sides, self._mapping, self._deviations)

    def all(self) -> None:
        self._tally.sequences += 1
        try:
            for step in self.script.steps:
                if step.mode == "single":
                    self._single(step.calls[0], step.who)
                else:
                    self._several(step)
        except SequenceEnds as why:
            self._deviations.note(str(why))

    def _single(self, call: Call, who: int) -> None:
        theirs, argv = self._mapping.resolve(call, BARE), self._mapping.resolve(call, OURS)
        if not self._may_be_sent(argv):
            return
        if command_of(argv) == b"XREAD" and b"+" in argv:
            theirs = self._deviations.without_plus(theirs)
        began = time.monotonic()
        ours = self.sides.ask_ours(argv, who)
        if isinstance(ours, Fault) and ours.refused:
            self._tally.count(command_of(argv), error=True)
            self._deviations.check_refusal(theirs, argv, ours)
            return
        modelled = is_modelled(theirs, self.sides.vocabulary)
        if self.script.protocol == 3 and not modelled and b"MAXSIZE" in map(upper, names_read(argv) and argv):
            theirs = self._deviations.by_resp3(theirs)
        bare = self._model.answer(theirs, ours) if modelled else self.sides.ask_bare(theirs)
        self._took(began)
        if not modelled:
            self._compare_types([argv], bare, ours, who)
            bare = self._retold(theirs, bare)
        self._settle(call, theirs, argv, bare, ours)
        cut = command_of(argv) in (b"XADD", b"XTRIM") and isinstance(bare, bytes | int)
        if cut and self._deviations.trims_loosely(argv):
            self._deviations.finish_trim(theirs, argv, bare, ours)
        elif cut and not modelled and self._deviations.trims_further(argv):
            self._deviations.finish_asking(theirs, argv, bare, ours)

    def _retold(self, theirs: Argv, bare: Reply) -> Reply:
        """Without the stand-in that owns what was given back."""
        return retold(theirs, bare, self._model.has_stand_in) if self._model.has_given_back else bare

    def _compare_types(self, argvs: list[Argv], bare: Reply, ours: Reply, who: int) -> None:
        if not self.sides.written_alike(who):
            raise Mismatch(argvs[-1], bare, ours, f"the replies to {argvs} are written differently")

    def _took(self, began: float) -> None:
        took = (time.monotonic() - began) * 1000
        self._deviations.longest_ms = max(self._deviations.longest_ms, took)

    def _may_be_sent(self, argv: Argv) -> bool:
        if any(triggers(argv) for _, triggers in KNOWN):
            return False
        if is_unknown(argv, self.sides.vocabulary):
            return False
        if is_modelled(argv, self.sides.vocabulary) and not (
            is_understood(argv) and self._model.may_be_asked(argv)
        ):
            return False
        if command_of(argv) in PLAIN_WRITES and len(argv) > 1 and self.sides.is_stream(argv[1]):
            return False
        if self.script.protocol == 3 and reads_twice(argv):
            self._deviations.note("XREAD of a stream twice")
            return False
        return self._deviations.may_count(argv, self.script.protocol)

    def _settle(self, call: Call, theirs: Argv, argv: Argv, bare: Reply, ours: Reply) -> None:
        """Compare the replies to one command, and note what it did."""
        command = command_of(argv)
        self._tally.count(command, error=isinstance(bare, Fault))
        if command == b"XADD":
            self._deviations.no_more_ids(argv, bare, ours)
        if command == b"XADD" and isinstance(bare, bytes) and isinstance(ours, bytes):
            if not self._mapping.added(call, theirs, argv, bare, ours):
                raise Mismatch(argv, bare, ours, "an ID that was not asked for, or does not ascend")
            if b"*" in argv:
                self._deviations.note("generated IDs")
        elif not self._agree(theirs, argv, bare, ours):
            raise Mismatch(argv, bare, ours)
        if not isinstance(bare, Fault):
            self._mapping.note(theirs, argv, bare)
            if self._mapping.keeps_ids(argv):
                raise SequenceEnds("generating after DEL")
            if command in MOVES:
                self._groups.drop(argv, bare)

    def _agree(self, theirs: Argv, argv: Argv, bare: Reply, ours: Reply) -> bool:
        command = command_of(argv)
        if isinstance(bare, Fault) or isinstance(ours, Fault):
            return same(bare, ours) or self._deviations.expected_error(theirs, argv, bare, ours)
        if command in (b"KEYS", b"SCAN"):
            return self._deviations.listed(argv, bare, ours)
        if command == b"DUMP":
            return self._deviations.same_dump(argv, bare, ours)
        if command == b"XTRIM" and (
            self._deviations.trims_loosely(argv) or self._deviations.trims_further(argv)
        ):
            return type(bare) is type(ours) is int  # the sum is checked next
        if command == b"XINFO" and argv[1].upper() == b"STREAM":
            return self._same_facts(argv[2], bare, ours)
        if command == b"XACKDEL" and self._deviations.acks_deleted(theirs, argv, bare, ours):
            return True
        if command in GROUPS or (command == b"XINFO" and argv[1].upper() != b"HELP"):
            return self._groups.agree(argv, bare, ours)
        translated = self._mapping.reply(argv, ours)
        if command in (b"XRANGE", b"XREVRANGE"):
            self._tally.entries += len(bare or ())
        return same(bare, translated) or self._deviations.clock(argv, bare, ours)

    def _same_facts(self, name: bytes, bare: Reply, ours: Reply) -> bool:
        if type(bare) is not type(ours):
            return False
        theirs, mine = facts(bare), self._mapping.facts(name, facts(ours))
        if isinstance(theirs[b"groups"], list):
            if not self._groups.groups(name, theirs[b"groups"], mine[b"groups"]):
                return False
            mine[b"groups"] = theirs[b"groups"]
        return self._deviations.trees(name, theirs, mine) and same(theirs, mine)

    # Pipelines

    def _several(self, step: Step) -> None:
        calls = [with_exact_cap(call) for call in step.calls]
        calls = [call for at, call in enumerate(calls) if self._fits(call, calls, at, step.mode)]
        theirs, argvs = list[Argv](), list[Argv]()
        for at, call in enumerate(calls):
            if any(map(unmakes, calls[:at])):
                calls[at] = forget(call)
            generating = {before[1] for before in calls[:at] if generates(before)}
            theirs.append(self._mapping.resolve(calls[at], BARE, generating))
            argvs.append(self._mapping.resolve(calls[at], OURS, generating))
        if not calls or any(triggers(argv) for argv in argvs for _, triggers in KNOWN):
            return
        began = time.monotonic()
        ours = self.sides.pipeline_ours(argvs, step.mode, step.who)
        if isinstance(ours, Fault) and ours.refused and step.mode == "multi":
            self._tally.count(b"MULTI", error=True)
            self._deviations.check_refused_multi(calls, ours)
            return
        replies = ours if isinstance(ours, list) else []
        refused = {at for at, reply in enumerate(replies) if isinstance(reply, Fault) and reply.refused}
        said = [[b"ECHO", b"refused by us"] if at in refused else words for at, words in enumerate(theirs)]
        bare = self.sides.pipeline_bare(said, step.mode)
        self._took(began)
        if isinstance(bare, Fault) or isinstance(ours, Fault):
            self._tally.count(b"MULTI", error=True)
            if not same(bare, ours) and not self._deviations.two_errors(bare, ours):
                raise Mismatch([b"MULTI"], bare, ours)
            return
        self._compare_types(argvs, bare, ours, step.who)
        for at, call in enumerate(calls):
            if at in refused:
                self._tally.count(command_of(call), error=True)
                self._deviations.check_refusal_in_pipeline(argvs[at], ours[at])
            else:
                self._groups.settled = at == len(calls) - 1
                self._settle(call, theirs[at], argvs[at], self._retold(theirs[at], bare[at]), ours[at])
        self._groups.settled = True

    def _fits(self, call: Call, calls: list[Call], at: int, mode: Mode) -> bool:
        """Whether a pipeline may have it: some deviations can only be checked one command at a time."""
        command = command_of(call)
        words = [word if isinstance(word, bytes) else b"0-0" for word in call]
        if is_modelled(words, self.sides.vocabulary) or is_unknown(words, self.sides.vocabulary):
            return False  # the model answers one command at a time
        if command == b"XINFO" and self._model.has_given_back and b"GROUPS" in map(upper, call):
            return False  # the groups of the stand-in are known only after the pipeline
        if command == b"SCAN" and mode == "pipeline":
            return False  # one page compares with nothing
        if command == b"XREAD" and b"+" in call:
            return False
        if command in (b"XADD", b"XTRIM") and set(map(upper, call)) & set(ASKING):
            return False
        if b"MAXSIZE" in map(upper, call):
            return False  # the IDs that a pipeline generates, and their length, are known only after it
        if self.script.protocol == 3 and reads_twice(call):
            return False
        if sees_groups(call) and any(command_of(other) in MOVES for other in calls[:at]):
            return False  # until the pipeline is done, the bare engine has groups that we have not
        if command == b"XADD" and mode == "multi" and has_cap(call):
            self._deviations.note("a cap inside MULTI")
            return not any(call[1] in other for other in calls[at + 1 :])
        if (command in PLAIN_WRITES or command in MISSING) and len(call) > 1:
            made = any(
                command_of(other) in (b"XADD", b"XGROUP", *MOVES) and call[1] in other for other in calls
            )
            return not made and isinstance(call[1], bytes) and not self.sides.is_stream(call[1])
        return True
