"""Which machine a plan is for: the named one, else the GPUs of this machine, else the preset h100."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costmodels.cluster_file import load_cluster, preset_names
from costmodels.hardware import Cluster

ASSUMED = "h100"


@dataclass(frozen=True, slots=True)
class Machine:
    """The cluster and the `sentence` that tells the user what was chosen."""

    cluster: Cluster
    sentence: str
