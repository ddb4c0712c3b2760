from .model import Net
