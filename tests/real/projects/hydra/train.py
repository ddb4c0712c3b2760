# SPDX-License-Identifier: Apache-2.0
import logging

import hydra
import torch
from omegaconf import DictConfig

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig):
    model = torch.nn.Linear(cfg.model.width, 1)
    log.info("lr %s, width %s", cfg.lr, cfg.model.width)
    out = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
    torch.save(model.state_dict(), f"{out}/model.pt")


if __name__ == "__main__":
    main()
