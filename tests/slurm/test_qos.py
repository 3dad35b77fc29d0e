"""What sacctmgr says of each quality of service."""

from __future__ import annotations

from ftsup.slurm.accounting import Qos, parse_qos

SAID = """\
Welcome to the cluster
cluster|00:00:00||normal
cancel|00:02:00|1-00:00:00|odd|name
"""


def test_each_row_is_one_and_a_banner_is_none():
    assert parse_qos(SAID) == (
        Qos(name="normal", preempt_mode="cluster"),
        Qos(name="odd|name", preempt_mode="cancel", grace_s=120.0, limit_s=86400.0),
    )
