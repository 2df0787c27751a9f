"""Behaviour cloning in a plain torch loop on data in memory, as an engineer would write it without a library."""

from __future__ import annotations

import time

import numpy as np
import pyarrow.parquet as pq
import torch
from offline_cli import BATCH, HIDDENS, LR, measure_updates, parse_settings
from torch import nn
from torch.nn import functional as F


def load(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the table's observations (R, 4) and actions (R,)."""
    table = pq.read_table(folder, columns=["obs", "actions"])
    flat = table["obs"].combine_chunks().flatten().to_numpy()
    obs = flat.reshape(table.num_rows, -1)
    return torch.from_numpy(obs.astype(np.float32)), torch.from_numpy(table["actions"].to_numpy().astype(np.int64))


def network(num_inputs: int, num_actions: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in HIDDENS:
        layers += [nn.Linear(num_inputs, width), nn.Tanh()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_actions))


def main() -> None:
    settings = parse_settings(__doc__)
    torch.set_num_threads(1)
    start = time.perf_counter()
    obs, actions = load(settings.data)
    model = network(obs.shape[1], 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def one_pass() -> int:
        order = torch.randperm(len(obs))
        batches = order.split(BATCH)[: len(obs) // BATCH]
        for rows in batches:
            loss = F.cross_entropy(model(obs[rows]), actions[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return len(batches)

    measure_updates(settings, start, one_pass)


if __name__ == "__main__":
    main()
