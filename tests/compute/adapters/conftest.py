from checkpoint_fixtures import checkpoint, stored

__all__ = ["checkpoint", "stored"]
