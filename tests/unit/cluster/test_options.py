"""What a cluster is started with: defaults, limits, and errors that name what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stretto.cluster.application import patiently
from stretto.cluster.options import RayOptions, read_options
from stretto.errors import NotReadyError, SettingsError

DEPLOY = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"


def test_a_misspelled_option_is_an_error_with_the_right_name():
    with pytest.raises(SettingsError) as refused:
        read_options({"replica": 2})
    assert refused.value.hint == "did you mean replicas?"
    with pytest.raises(SettingsError) as refused:
        read_options({"replicas": 1, "replicas_max": 4, "scaling": {"allowed_wait": 1.0}})
    assert "allowed_wait_s" in refused.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"replicas": 0},
        {"replicas": 65},
        {"gates": 0},
        {"replicas": 4, "replicas_max": 2},
        {"replicas": "two"},
    ],
)
def test_numbers_out_of_range_are_refused(given):
    with pytest.raises(SettingsError):
        read_options(given)


def test_autoscaling_is_on_between_two_numbers():
    assert not RayOptions(replicas=2).autoscales
    assert not RayOptions(replicas=2, replicas_max=2).autoscales
    policy = RayOptions(replicas=0, replicas_max=3, scaling={"up_delay_s": 1.0}).scaling_policy()
    assert (policy.floor, policy.ceiling, policy.up_delay_s) == (0, 3, 1.0)


def test_a_cluster_always_has_a_token(tmp_path):
    made = RayOptions().with_token()
    assert len(made.token) == 64
    assert made.with_token() == made
    assert made.access("announced-" * 8).token == "announced-" * 8
    path = tmp_path / "token"
    path.write_text("f" * 64)
    path.chmod(0o600)
    filed = RayOptions(token_file=str(path)).with_token()
    assert filed.token == ""
    assert filed.access("announced-" * 8).token == "f" * 64
    assert filed.secret != made.secret


def test_the_serve_config_in_deploy_is_valid():
    (application,) = yaml.safe_load(DEPLOY.read_text())["applications"]
    assert application["import_path"] == "stretto.cluster:app"
    options = read_options(application["args"])
    assert options.loaded().server.port == 8000


def test_a_ray_that_does_not_come_up_in_time_is_started_again():
    tries, ended = [], []

    def start() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Exception("The current node timed out during startup.")

    patiently(start, give_up=lambda: ended.append(1))
    assert (len(tries), len(ended)) == (3, 2)
    with pytest.raises(ValueError, match="num_cpus"):
        patiently(lambda: (_ for _ in ()).throw(ValueError("num_cpus")), give_up=lambda: None)


def test_a_ray_that_never_comes_up_is_not_our_bug():
    def start() -> None:
        raise Exception("timed out")

    with pytest.raises(NotReadyError, match="Ray did not start: timed out"):
        patiently(start, give_up=lambda: None)
