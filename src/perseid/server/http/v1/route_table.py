"""All routes of the HTTP API, in the order of the OpenAPI document.

A module of `routes` looks like this:

    RECORDS: Final = Routes("Records", "Create, read, change and delete records.")


    class NewRecord(RequestBody, frozen=True):                # unknown fields are refused
        \"\"\"A record to create.\"\"\"

        handle: Annotated[str, Doc("The handle.", examples=["12345/x"])]
        values: Annotated[list[ValueInput], Doc("Its values.", min_length=1)]
        note: Note = ""


    class CreatedRecord(ResponseBody, frozen=True):           # fields with default values are omitted
        \"\"\"A created record.\"\"\"

        handle: Annotated[str, Doc("The handle.")]
        seq: Seq


    @RECORDS.add(
        "POST", "/handles", "createRecord", "Create a record",
        body=NewRecord, response=CreatedRecord, status=201, scope="create", creates=True, problems=(401, 403, 409, 422),
    )
    async def create(call: ApiCall) -> Reply:
        \"\"\"Create a record under a handle of your choice.\"\"\"      # the description; Markdown
        new = call.payload(NewRecord)
        handle = call.parse_handle(new.handle, new=True)
        values = await call.run_in_pool(lambda: parse_values(new.values))  # slow for many values
        return await call.create(
            lambda _: CreateRecord(handle, values),           # a registry command
            lambda created: Reply(CreatedRecord(str(created.handle), created.seq), 201, name=str(created.handle)),
            about=handle, note=new.note,
        )


    @RECORDS.add(
        "GET", "/handles/{handle}/history", "history", "Get the history of a handle",
        response=HistoryPage, query=Paging, problems=(404,), parameters={"handle": HANDLE_PARAMETER},
    )
    async def history(call: ApiCall) -> Reply:
        \"\"\"Return the versions of a record, newest first.\"\"\"
        handle, query = call.handle(), call.query_as(Paging)
        before = await call.after(int)                        # None on the first page
        page = await call.read(lambda context: load_page(context, handle, before, query.limit), handle)
        cursor = await call.cursor(page.last if page.more else None)
        return Reply(HistoryPage([...], next=cursor), next=cursor, name=str(handle))

- Requests and responses are `RequestBody` and `ResponseBody` classes with docstrings; every field has a `Doc`. Every
  page has a field `next: NextCursor = None`. The query of a list extends `Paging`.
- Nothing blocks: the ledger is reached through `call.read` (a function of `Context`), `call.respond` (which also builds
  the response), `call.change` (a command), `call.create` and `call.once` (which support `Idempotency-Key`, for routes
  with `creates=True`; their responses are stored for a day, so they must not contain secrets) and `call.do`.
- Errors are raised: `Refused`, `InvalidName`, `InvalidData` and `BadRequest` become problems;
  `InvalidParameter(message, where)` and `ApiError(slug, detail, advice)` are for errors of the API itself. `problems`
  lists the statuses of a route besides `openapi.COMMON_STATUSES`.
- `scope` is the scope that a token needs (`schema.namespaces.Scope`), for documentation; the registry enforces it.
- Rules belong to the registry, so that every interface applies them. Each section adds its requests to
  tests/server/http/v1/test_v1_same_rules.py.
- A new section is listed in `SECTIONS` below.
"""

from typing import Final

from .routes import history, jobs, minting, names, namespaces, queries, records, tokens
from .routing import Routes

SECTIONS: Final[tuple[Routes, ...]] = (
    names.OVERVIEW,
    minting.MINTING,
    records.RECORDS,
    records.LIFECYCLE,
    queries.LINKS,
    history.HISTORY,
    history.PROOFS,
    queries.FIND,
    jobs.JOBS,
    jobs.TRANSFERS,
    namespaces.NAMESPACES,
    namespaces.TYPES,
    queries.EXPLAIN,
    queries.CITATION,
    names.NAMES,
    tokens.TOKENS,
)
