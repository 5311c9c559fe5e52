"""All pages of a query."""

from __future__ import annotations

from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import StoreNodeError


def pages_of(client: StoreClient, query: StoreQuery) -> list[StorePage]:
    """The pages that the client's nodes return, in order; raises the fault of a node."""
    pages: list[StorePage] = []
    for _, page in client.walk_each(query):
        if isinstance(page, StoreNodeError):
            raise page
        pages.append(page)
    return pages
