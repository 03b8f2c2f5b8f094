"""Tables read for tests: their points, or the one line that refuses them."""

import pytest

from analysis.fits.points import Points
from analysis.fits.tables import read_points
from arch.errors import InputError


def points(*args, **kwargs) -> Points:
    """Of a table without groups."""
    return read_points(*args, **kwargs).groups[""]


def refused(message, source, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_points(source, *args, **kwargs)
    assert "\n" not in str(error.value)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
