from tests.tiny import tiny as tiny  # a fixture
