"""`bs:config`, parsed: numbers that no region can have are refused."""

import pytest

from braidstream.errors import ConfigError
from braidstream.model.region_config import Region


@pytest.mark.parametrize("field", ["writer", "writers", "left"])
@pytest.mark.parametrize("number", ["0", "-5", "1024", "100000000000000", "1e+14"])
def test_a_writer_outside_the_range_is_refused(field: str, number: str) -> None:
    config = {"region": "1", "name": "us-east", "writer": "1", "writers": "1 2", "id-mode": "strict"}
    words = [word.encode() for pair in {**config, field: number}.items() for word in pair]
    with pytest.raises(ConfigError, match="cannot be read"):
        Region.parse(words)
