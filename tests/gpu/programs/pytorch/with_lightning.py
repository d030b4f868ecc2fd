"""Lightning on gpupool's memory: its monitor of devices logs PyTorch's statistics."""

import csv
import importlib.util
import tempfile
from pathlib import Path

import gpupool
import torch

if importlib.util.find_spec("lightning"):
    from lightning import pytorch as lightning
    from lightning.pytorch.callbacks import DeviceStatsMonitor
    from lightning.pytorch.loggers import CSVLogger
else:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import DeviceStatsMonitor
    from pytorch_lightning.loggers import CSVLogger


class Model(lightning.LightningModule):
    """A layer that learns the sum of its input."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def training_step(self, batch, index):
        return ((self.layer(batch) - batch.sum(1, keepdim=True)) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def main():
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    data = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=1,
            max_epochs=2,
            logger=CSVLogger(folder),
            callbacks=[DeviceStatsMonitor()],
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Model(), data)
        (path,) = Path(folder).rglob("metrics.csv")
        with path.open() as file:
            rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if "allocated_bytes.all.peak" in name]
    assert names, f"no statistics of memory are among {sorted(rows[0])}"
    values = [float(row[name]) for row in rows for name in names if row[name]]
    assert max(values) > 0, f"the monitor logged {values}"
    print(f"torch: Lightning: peak {max(values):.0f} bytes")


if __name__ == "__main__":
    main()
