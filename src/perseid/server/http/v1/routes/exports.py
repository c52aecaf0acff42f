"""Routes of exports: many records as a file, in pages.

A page is a part of the file, so that a client appends the pages to each other. Each is a slice of
`registry.queries.export`, read and encoded in a pool within the budgets of the client. Cursors are encrypted, because a
page may end at a record that the caller cannot see.
"""

from typing import Final

from perseid.bulk.export import open_writer
from perseid.registry.context import Context
from perseid.registry.queries.export import AsOf, Position, Selection, check_export, find_as_of, read_slice
from perseid.schema.exports import AS_OF_HEADER, OMITTED_HEADER, RECORDS_HEADER, ExportFormat, ExportQuery
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.routing import Reply, Routes

from .queries import select

EXPORTS: Final = Routes("Exports", "Many records as a file: JSON lines, CSV or a batch file.")

MEDIA_TYPES: Final = {
    ExportFormat.JSONL: "application/jsonl",
    ExportFormat.CSV: "text/csv; charset=utf-8",
    ExportFormat.BATCH: "text/plain; charset=utf-8",
}


@EXPORTS.add(
    "GET",
    "/exports",
    "Export records",
    scope="find",
    media_types=tuple([each.partition(";")[0] for each in MEDIA_TYPES.values()]),
    problems=(401, 403, 404, 422, 501),
)
async def export_records(call: ApiCall, query: ExportQuery) -> Reply[bytes]:
    """Return a part of an export, and the URL of the next part in `Link`. All parts, one after another, are the file.

    You get public records of the namespaces that you can list, and all of those that you can read, with the private
    values that you can read. All parts are as of one ledger entry (`Perseid-As-Of`). A part can be empty without being
    the last one. To resume an interrupted export, request its next part.
    """

    def read(context: Context) -> Reply[bytes]:
        snapshot, identity = context.snapshot, context.identity
        writer = open_writer(query.format, history=query.history, raw=query.raw)
        cursor = call.after(tuple[int, bool, bytes, int, int | None])
        selection = Selection(select(call, context, query, None if cursor is None else cursor[4]), query.history)
        if cursor is None:
            check_export(snapshot, identity, selection)
            as_of, after = find_as_of(snapshot.reader, query.at, call.now()), None
        else:
            as_of, after = AsOf(*cursor[:2]), Position(*cursor[2:4])
        part = read_slice(snapshot, identity, selection, as_of, after)
        body, omitted = writer.encode(part.records)
        end = part.position
        following = None if end is None else (as_of.seq, as_of.is_past, end.key, end.before, selection.search.since)
        counts = {AS_OF_HEADER: as_of.seq, RECORDS_HEADER: len(part.records), OMITTED_HEADER: omitted}
        headers = tuple([(name, str(count)) for name, count in counts.items()])
        body = body if after else writer.header + body
        reply: Reply[bytes] = Reply(body, 200, headers, MEDIA_TYPES[query.format])
        call.add_next_page(reply, call.seal(following))
        return reply

    return await call.read(read, query.prefix or "")
