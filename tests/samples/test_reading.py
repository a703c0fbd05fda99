"""Files of samples: what is written is read back, whatever it says."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reflectrl.samples import Sample, read_samples, write_samples

words = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
numbers = st.floats(allow_nan=False, allow_infinity=False)
samples = st.builds(
    Sample,
    id=words,
    group=words,
    prompt=words,
    completion=words,
    reward=numbers,
    components=st.dictionaries(words, numbers, max_size=2),
    logprob=st.none() | numbers,
    meta=st.dictionaries(words, st.none() | words | numbers | st.lists(st.integers(), max_size=2), max_size=2),
)


@given(written=st.lists(samples, min_size=1, max_size=4, unique_by=lambda sample: sample.id), packed=st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory, written: list[Sample], packed: bool) -> None:
    path: Path = tmp_path_factory.mktemp("s") / ("some.jsonl.gz" if packed else "some.jsonl")
    assert write_samples(path, written) == len(written)
    assert list(read_samples(path)) == written
    assert list(path.parent.iterdir()) == [path]
