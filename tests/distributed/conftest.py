import pytest

from .world import World


@pytest.fixture(scope="package")
def world():
    made = World()
    yield made
    made.close()
