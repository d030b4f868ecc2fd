"""The Hugging Face Trainer on gpupool's memory: it trains, and its metrics of memory are there."""

import tempfile

import gpupool
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

MIB = 1 << 20


def train():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    words = [torch.randint(128, (32,)) for _ in range(64)]
    data = [{"input_ids": each, "labels": each} for each in words]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=8,
            skip_memory_metrics=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=5,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
        metrics = trainer.train().metrics
        metrics.update(trainer.evaluate())
    generated = model.generate(words[0][None, :8].cuda(), max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert generated.shape == (1, 28), generated.shape
    return metrics


def main():
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    metrics = train()
    for name in ("train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta", "eval_mem_gpu_peaked_delta"):
        assert name in metrics, f"the metrics are {sorted(metrics)}"
    # What AdamW keeps of it, and the gradients.
    told = metrics["train_mem_gpu_alloc_delta"] + metrics["train_mem_gpu_peaked_delta"]
    assert told > MIB // 4, f"training took {told} bytes"
    assert gpupool.memory_stats(0).allocations > 100, "PyTorch allocates elsewhere"
    print(f"torch: Trainer: peaked {metrics['train_mem_gpu_peaked_delta']} bytes above what it began with")


if __name__ == "__main__":
    main()
