"""IDs: the bijection between natives and what users see, and the positions in between."""

from hypothesis import example, given
from hypothesis import strategies as st

from braidstream.model import ids
from braidstream.model.ids import FULL, LAST, LIMIT, MAX, ZERO, Id
from braidstream.model.strand import Strand, reply_entries

writers = st.integers(1, ids.WRITERS - 1)

# Where carries, wraps and limits are, and everywhere else.
_edges = [0, 1, 2, 1022, 1023, 1024, 1025, 2047, 2048, 2**53, MAX - 1024, MAX - 1023, MAX - 1, MAX]
_edges += range(2**63 - 1025, 2**63 + 2050, 205)
numbers = st.one_of(st.sampled_from(_edges), st.integers(0, 5000), st.integers(0, MAX))
positions = st.tuples(numbers, numbers)

_sequences = st.one_of(
    st.integers(0, 5),
    st.integers(0, LIMIT - 1),
    st.integers(FULL - 2, FULL + 2),
    st.integers(LIMIT - 4, LIMIT - 1),
)
# What a strand may hold: 0-0 is never an entry, and a sequence of 2**54 has no image.
natives = st.tuples(numbers, _sequences).filter(lambda native: native != ZERO)


@given(natives, writers)
@example((1589929244828, 5), 2)
def test_an_id_names_its_writer_and_leads_back_to_the_native(native: Id, writer: int) -> None:
    user = ids.user_of(native, writer)
    assert ids.writer_of(user) == writer
    assert Strand(b"orders", "s", writer).exact(user) == native


@given(natives, writers)
@example((5, LIMIT), 3)
@example((5, MAX), 3)
def test_minting_text_is_minting(native: Id, writer: int) -> None:
    assert ids.user_text(ids.text(native), writer) == ids.text(ids.user_of(native, writer))


@given(positions, writers)
def test_every_id_that_names_a_writer_is_the_image_of_one_native(user: Id, writer: int) -> None:
    user = (user[0], user[1] & ~(ids.WRITERS - 1) | writer)
    native = Strand(b"orders", "s", writer).exact(user)
    assert native is not None
    if native != ZERO:
        assert ids.user_of(native, writer) == user


@given(positions, writers, writers)
def test_an_id_of_one_writer_cannot_stand_in_the_strand_of_another(user: Id, one: int, other: int) -> None:
    stands = Strand(b"orders", "s", other).exact((user[0], user[1] & ~(ids.WRITERS - 1) | one))
    assert (stands is not None) == (one == other)


_digits = st.text("0123456789", min_size=1, max_size=21)
_odd = st.sampled_from(
    ["1", "-", "1-", "-1", "1-2-3", "1-1 2-2", "1-*", " 1-1", "+1-1", "1-1\0", "1-1\n", ""]
)
_texts = st.one_of(st.builds("{}-{}".format, _digits, _digits), _odd).map(str.encode)


@given(st.lists(_texts, max_size=4))
@example([b"18446744073709551615-18446744073709551615"])
@example([b"1-1 2-2", b"3-3"])
def test_many_ids_are_read_as_one_by_one_or_not_at_all(texts: list[bytes]) -> None:
    found = ids.parse_plain(texts)
    assert found is None or found == [ids.parse(each) for each in texts]


def test_ids_as_engines_write_them_are_read_at_once() -> None:
    assert ids.parse_plain([b"0-1", b"1589929244828-5122"]) == [(0, 1), (1589929244828, 5122)]


@given(st.lists(natives, max_size=4), writers, st.sampled_from("sc"))
def test_a_page_is_translated_in_one_step_as_in_two(found: list[Id], writer: int, kind: str) -> None:
    strand, page = Strand(b"orders", kind, writer), [[ids.text(native), [b"f", b"v"]] for native in found]
    assert strand.reply(page) == reply_entries(strand.entries(page))


@given(st.lists(positions, max_size=4), writers, st.sampled_from("sc"))
def test_the_texts_in_a_strand_are_those_of_its_entries(users: list[Id], writer: int, kind: str) -> None:
    strand = Strand(b"orders", kind, writer)
    here = [native for user in users if (native := strand.exact(user)) is not None]
    assert strand.native_texts(users) == [ids.text(native) for native in here]


@given(positions)
def test_a_chosen_id_stands_as_it_is(user: Id) -> None:
    strand = Strand(b"orders", "c", 7)
    assert strand.exact(user) == strand.floor(user) == strand.ceil(user) == strand.user(user) == user


@given(natives, natives, writers)
def test_minting_keeps_the_order(one: Id, other: Id, writer: int) -> None:
    assert (one < other) == (ids.user_of(one, writer) < ids.user_of(other, writer))


@given(natives, natives, writers, writers)
def test_two_writers_never_mint_the_same_id(one: Id, other: Id, writer: int, another: int) -> None:
    same = ids.user_of(one, writer) == ids.user_of(other, another)
    assert same == (one == other and writer == another)


@given(natives, positions, writers)
@example((5, LIMIT - 1), (5, MAX), 1023)
@example((5, LIMIT - 1), (6, 0), 1)
@example((4, LIMIT - 1), (5, 0), 1)
def test_floor_is_the_greatest_native_whose_image_is_not_after(native: Id, user: Id, writer: int) -> None:
    assert (ids.user_of(native, writer) <= user) == (native <= ids.floor_of(user, writer))


@given(natives, positions, writers)
@example((5, LIMIT - 1), (5, MAX), 1)
def test_ceil_is_the_least_native_whose_image_is_not_before(native: Id, user: Id, writer: int) -> None:
    assert (ids.user_of(native, writer) >= user) == (native >= ids.ceil_of(user, writer))


@given(natives, writers)
def test_floor_and_ceil_of_an_image_are_its_native(native: Id, writer: int) -> None:
    image = ids.user_of(native, writer)
    assert ids.ceil_of(image, writer) == ids.floor_of(image, writer) == native


@given(positions, writers, st.integers(0, 2**53 - 1))
@example((5, MAX), 1, 0)
@example((5, 0), 1, 0)
@example((5, 2**63), 1, 2**53 - 1)
def test_what_the_engine_mints_after_a_rest_has_an_image_after_the_id(
    user: Id, writer: int, later: int
) -> None:
    """Also the ones after the first, though the millisecond does not go on for a long while."""
    following = ids.after(ids.rest_of(user, writer))
    if following is not None:  # else the strand is exhausted, and the engine says so
        assert following[1] + later < LIMIT
        assert ids.user_of((following[0], following[1] + later), writer) > user


@given(positions, writers)
def test_a_strand_at_rest_does_not_look_longer_than_the_id(user: Id, writer: int) -> None:
    assert ids.user_of(ids.rest_of(user, writer), writer) <= user


@given(natives, positions, writers)
def test_a_strand_at_rest_is_past_all_that_is_not_after_the_id(native: Id, user: Id, writer: int) -> None:
    if ids.user_of(native, writer) <= user:
        assert native <= ids.rest_of(user, writer)


@given(positions)
def test_after_and_before_undo_each_other(entry: Id) -> None:
    following, previous = ids.after(entry), ids.before(entry)
    assert following is None if entry == LAST else following > entry and ids.before(following) == entry
    assert previous is None if entry == ZERO else previous < entry and ids.after(previous) == entry


@given(positions)
def test_text_and_parse_undo_each_other(entry: Id) -> None:
    assert ids.parse(ids.text(entry)) == ids.native(ids.text(entry)) == entry


@given(numbers, numbers)
def test_milliseconds_alone_take_the_sequence_the_reader_means(ms: int, missing: int) -> None:
    assert ids.parse(b"%d" % ms, missing) == (ms, missing)
