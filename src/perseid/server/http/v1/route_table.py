"""Everything that our own API has, chapter by chapter. A chapter is a module `…_chapter.py` like this one:

    CHAPTER: Final = Routes("Records", "What a name stands for: read, made and changed.")


    class NewRecord(Given, frozen=True):                      # of requests: unknown members are refused
        \"\"\"A record that is to be made.\"\"\"

        handle: Annotated[str, About("Its name.", examples=["12345/x"])]
        values: Annotated[list[ValueGiven], About("What it holds.", min_length=1)]
        note: Note = ""


    class Made(Told, frozen=True):                            # of answers: what is as usual is left out
        \"\"\"That a record was made.\"\"\"

        handle: Annotated[str, About("Its name.")]
        seq: Seq


    @CHAPTER.add(
        "POST", "/handles", "createRecord", "Make a record",
        body=NewRecord, answer=Made, status=201, scope="create", creates=True, problems=(401, 403, 409, 422),
    )
    async def create(call: ApiCall) -> Reply:
        \"\"\"Make a record under a name that you chose.\"\"\"          # the description; Markdown
        new = call.given(NewRecord)
        handle = call.named(new.handle, new=True)
        given = await call.worked_out(lambda: given_values(new.values))  # may take long, if there are many
        return await call.create(
            lambda _: CreateGiven(handle, given),             # an operation of the registry
            lambda made: Reply(Made(str(made.handle), made.seq), 201, name=str(made.handle)),
            about=handle, note=new.note,
        )


    @CHAPTER.add(
        "GET", "/handles/{handle}/history", "history", "The history of a name",
        answer=Entries, query=Paging, problems=(404,), parameters={"handle": HANDLE_STEP},
    )
    async def history(call: ApiCall) -> Reply:
        \"\"\"What became of a record, the latest first.\"\"\"
        handle, asked = call.handle(), call.asked(Paging)
        before = await call.after(int)                        # None at the first page
        found = await call.read(lambda context: page(context, handle, before, asked.limit), handle)
        following = await call.cursor(found.last if found.more else None)
        return Reply(Entries([...], next=following), next=following, name=str(handle))

- Everything that goes over the network is a `Given` or a `Told` with a docstring, and every member has an `About`.
  A member `next: NextCursor = None` belongs to every page. A query that has pages extends `Paging`.
- Nothing blocks: the ledger is reached through `call.read` (a function of `Context`), `call.look` (an operation that
  only reads), `call.change` (one that changes), `call.create` and `call.once` (which heed `Idempotency-Key`, for routes
  with `creates=True`; what they answer is kept for a day, so no secret may be in it) and `call.do`.
- Refusals are raised: `Refused`, `InvalidName`, `InvalidData` and `Malformed` become problems by themselves, and
  `Unfitting(message, where)` and `Wrong(slug, detail, advice)` are for what only the API knows. Statuses that a route
  may refuse with stand in `problems`; 400, 429, 500 and 503 every route has, and 401, 403 every one with a `scope`.
- `scope` is the word that a token needs (`registry.scopes.Word`), for the description; the registry enforces it.
- Rules live in the registry, so that the command line refuses the same; see tests/server/http/v1/test_v1_same_rules.py,
  which every chapter adds its requests to.
- The module is named in `CHAPTERS` below, in the order in which the description has them.
"""

from typing import Final

from .routes import (
    citation,
    explain,
    find,
    history,
    jobs,
    lifecycle,
    links,
    minting,
    names,
    namespaces,
    overview,
    proofs,
    records,
    tokens,
    transfers,
    types,
)
from .routing import Routes

SECTIONS: Final[tuple[Routes, ...]] = (
    overview.SECTION,
    minting.SECTION,
    records.SECTION,
    lifecycle.SECTION,
    links.SECTION,
    history.SECTION,
    proofs.SECTION,
    find.SECTION,
    jobs.SECTION,
    transfers.SECTION,
    namespaces.SECTION,
    types.SECTION,
    explain.SECTION,
    citation.SECTION,
    names.SECTION,
    tokens.SECTION,
)
"""In the order of the description."""
