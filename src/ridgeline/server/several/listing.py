"""Entries of several models in lists, loaded or not, in every dialect."""

import os
from datetime import UTC, datetime, timedelta
from time import monotonic

from msgspec import structs

from ridgeline.facts.hardware.machine import anonymous_bytes
from ridgeline.server import anthropic, models, ollama_models, ollama_shapes, replies
from ridgeline.server.ollama_chat import tagged
from ridgeline.server.service import Service
from ridgeline.server.several.resident import Listing, Phase, Resident

UNKNOWN = ollama_shapes.Details("", "", "", [], "", "")
NOT_LOADED_YET = "1970-01-01T00:00:00Z"


async def make_listing(service: Service) -> Listing:
    """Makes the entries of a model that is loaded."""
    model = service.model
    return Listing(
        model.limits.kv, models.card(model), models.info(model), await ollama_models.listed(model), await ollama_models.shown(model)
    )


async def renew(resident: Resident) -> None:
    """Takes down what the model is, and takes, that another has been swapped for."""
    resident.measure(anonymous_bytes(os.getpid()) or 0)
    resident.listing = await make_listing(resident.service)


def cards(resident: Resident) -> list[replies.ModelCard]:
    """OpenAI's cards of a model, its aliases and adapters."""
    name = resident.name
    if resident.listing is None:
        card = replies.ModelCard(name, "model", 0, "ridgeline", name, None, None, None, None)
    else:
        card = resident.listing.card
    return models.cards(structs.replace(card, status=resident.status()), resident.service.deployments)


def info(resident: Resident) -> anthropic.ModelInfo:
    """Anthropic's description of a model."""
    if resident.listing is not None:
        return resident.listing.info
    return anthropic.ModelInfo(id=resident.name, created_at=NOT_LOADED_YET, display_name=resident.name, max_input_tokens=0, max_tokens=0)


def listed(resident: Resident) -> list[ollama_shapes.ListedModel]:
    """Ollama's description of a model, under all of its names."""
    name = tagged(resident.name)
    known = ollama_shapes.ListedModel(name, name, NOT_LOADED_YET, 0, "", UNKNOWN) if resident.listing is None else resident.listing.listed
    return ollama_models.named(known, resident.service.deployments.aliases)


async def running(resident: Resident, min_residence: float) -> list[ollama_shapes.RunningModel]:
    """Ollama's entry of a model that is loaded; nothing of another."""
    if resident.phase is not Phase.LOADED:
        return []
    at, expires = resident.unloads_at(min_residence), ollama_models.NEVER
    if at is not None:
        moment = datetime.now(UTC) + timedelta(seconds=min(at - monotonic(), 3e9))
        expires = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [await ollama_models.running_model(resident.service.model, expires)]
