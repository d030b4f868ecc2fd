"""PyTorch Geometric on gpupool's memory: a network on graphs of varying size, and its count of memory."""

import gpupool
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool


class Model(torch.nn.Module):
    """Two convolutions and a mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = GCNConv(16, 64), GCNConv(64, 64), torch.nn.Linear(64, 1)

    def forward(self, batch):
        x = self.first(batch.x, batch.edge_index).relu()
        x = self.second(x, batch.edge_index).relu()
        return self.last(global_mean_pool(x, batch.batch))


def graph(nodes):
    return Data(x=torch.randn(nodes, 16), edge_index=torch.randint(nodes, (2, 4 * nodes)))


def main():
    torch.manual_seed(0)
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    model = Model().cuda()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(60):
        sizes = torch.randint(10, 2000, (8,)).tolist()
        batch = Batch.from_data_list([graph(size) for size in sizes]).to("cuda")
        target = global_mean_pool(batch.x, batch.batch).sum(1, keepdim=True)
        loss = ((model(batch) - target) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert all(loss == loss for loss in losses), losses
    allocated = torch.cuda.max_memory_allocated()
    assert allocated > 0
    assert gpupool.memory_stats(0).allocations > 500, "PyTorch allocates elsewhere"
    print(f"torch: PyTorch Geometric: peak {allocated} bytes, last loss {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
