# SPDX-License-Identifier: Apache-2.0
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=16)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(0, 50, (8,)), "attention_mask": torch.ones(8, dtype=torch.long),
         "labels": torch.tensor(i % 2)} for i in range(32)]
args = TrainingArguments(output_dir="out", num_train_epochs=2, per_device_train_batch_size=8, logging_steps=1, save_steps=4,
                         report_to=["tensorboard"], disable_tqdm=True, no_cuda=True)
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train()
trainer.save_model("out/final")
