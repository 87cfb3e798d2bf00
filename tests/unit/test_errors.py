from tfdeploy.errors import CollectError, InputError, LockedError, TfdeployError, UnreachableError


def test_an_error_reads_as_place_fault_and_remedy() -> None:
    error = InputError("unknown key 'comand'", "Did you mean command?", where="tfdeploy.yml:3")
    assert str(error) == "tfdeploy.yml:3: unknown key 'comand'. Did you mean command?"


def test_an_error_without_place_or_remedy_is_a_sentence() -> None:
    assert str(TfdeployError("the disk is full")) == "the disk is full."


def test_exit_codes_are_those_of_the_design() -> None:
    errors = (TfdeployError, InputError, UnreachableError, LockedError, CollectError)
    assert [error.exit_code for error in errors] == [1, 2, 3, 4, 5]
