"""Tiers of KV blocks that outlive an engine: what they keep is found by content, and trusted only behind a keyed checksum."""
