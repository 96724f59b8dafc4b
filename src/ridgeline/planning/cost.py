"""Money: what a token costs on rented devices, what an API asks, and where one overtakes the other. US dollars, tokens, hours."""

from typing import Literal

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = 30.0
API_BELOW_TOKENS_PER_DAY = 1_000_000
SELF_HOST_ABOVE_TOKENS_PER_DAY = 50_000_000

Hosting = Literal["api", "evaluate", "self-host"]


def token_cost(price_per_hour: float, tokens_per_second: float) -> float:
    """Dollars a token: devices' price a second / tokens a second. $16/h: 286 tok/s is $15.5, 7,200 tok/s $0.62 a million.

    Notes on inference, part 3, "The Cost Equation"; part 1, section 7: $3/h at 1,000 tok/s is $0.00083 a thousand.
    """
    return price_per_hour / 3600.0 / tokens_per_second


def million_token_cost(price_per_hour: float, tokens_per_second: float) -> float:
    """Dollars a million tokens. Same sources as `token_cost`."""
    return token_cost(price_per_hour, tokens_per_second) * 1e6


def api_month_cost(tokens_per_day: float, price_per_million: float) -> float:
    """Dollars for 30 days: 100 M tokens a day at $1 a million is $3,000. Notes on inference, part 1, section 9."""
    return tokens_per_day * DAYS_PER_MONTH / 1e6 * price_per_million


def self_host_month_cost(price_per_hour: float) -> float:
    """Dollars for a month of 730 hours, used or not: $2/h is about $1,500. Notes on inference, part 1, section 9."""
    return price_per_hour * HOURS_PER_MONTH


def break_even_tokens_per_day(price_per_hour: float, api_price_per_million: float) -> float:
    """Tokens a day from which rented devices cost less than the API, while they can serve that many."""
    return self_host_month_cost(price_per_hour) / DAYS_PER_MONTH / api_price_per_million * 1e6


def hosting(tokens_per_day: float, sensitive: bool = False) -> Hosting:
    """Volume and data decide: below 1 M tokens a day an API, above 50 M your own, between them evaluate; sensitive data: your own.

    Notes on inference, part 1, section 9, "Volume" and "Decision Matrix".
    """
    if sensitive or tokens_per_day > SELF_HOST_ABOVE_TOKENS_PER_DAY:
        return "self-host"
    return "api" if tokens_per_day < API_BELOW_TOKENS_PER_DAY else "evaluate"
