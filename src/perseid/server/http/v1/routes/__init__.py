"""All routes of the HTTP API, one module per section or more, in the order of the OpenAPI document.

A handler looks like this; what it declares becomes the OpenAPI document (`routing`):

    @RECORDS.add("POST", "/handles", "Create a record", status=201, scope="create", creates=True)
    async def create_record(call: ApiCall, new: NewRecord) -> Reply[CreatedRecord]:  # createRecord; `new` is the body
        \"\"\"Create a record under a handle of your choice.\"\"\"  # the description; Markdown
        handle = call.parse_handle(new.handle, new=True)
        values = await call.run_in_pool(lambda: parse_values(new.values))  # slow for many values
        return await execute_create(call, CreateRecord(handle, values), handle, new.note)

- Requests and responses are `RequestBody` and `ResponseBody` classes with docstrings; every field has a `Doc`. Query
  parameters are the parameter `query`. The query of a list extends `Paging`; every page has `next: NextCursor = None`.
- Nothing blocks: the ledger is reached through `call.read` (a function of `Context`), `call.change` (a command),
  `call.create` and `call.once` (which support `Idempotency-Key`, for routes with `creates=True`; their responses are
  stored for a day, so they must not contain secrets) and `call.do`.
- Errors are raised: `Refused`, `InvalidName`, `InvalidData` and `BadRequest` become problems;
  `InvalidParameter(message, where)` and `ApiError(slug, detail, advice)` are for errors of the API itself. `problems`
  lists the statuses of a route besides `openapi.COMMON_STATUSES`.
- `scope` is the scope that a token needs (`schema.namespaces.Scope`), for documentation; the registry enforces it.
- Rules belong to the registry, so that every interface applies them. Each section adds its requests to
  tests/server/http/v1/test_v1_same_rules.py.
- A new section is listed in `SECTIONS` below.
"""

from typing import Final

from perseid.server.http.v1.routing import Routes

from . import access, exports, history, imports, jobs, minting, names, namespaces, queries, records, statistics, tokens

SECTIONS: Final[tuple[Routes, ...]] = (
    names.OVERVIEW,
    minting.MINTING,
    records.RECORDS,
    records.LIFECYCLE,
    queries.LINKS,
    history.HISTORY,
    history.PROOFS,
    queries.FIND,
    exports.EXPORTS,
    imports.IMPORTS,
    jobs.JOBS,
    jobs.TRANSFERS,
    namespaces.NAMESPACES,
    namespaces.TYPES,
    access.ACCESS,
    statistics.STATISTICS,
    queries.EXPLAIN,
    queries.CITATION,
    names.NAMES,
    tokens.TOKENS,
)
