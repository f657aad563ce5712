"""The tap's format on disk: segment files of blocks of chunks of frames. Little endian throughout; version 4.

Where things are::

    <directory>/<stream>/<base>.open          being written, by exactly one process
    <directory>/<stream>/<base>.seg           sealed: never changes again, until retention deletes it
    <directory>/_consumers/<name>.json        the offsets of a reader (``consumer``)
    <directory>/_ledger.jsonl                 which streams existed, and what became of them (``ledger``)
    <directory>/_reserve                      room that control keeps, to record losses on a full disk
    <directory>/.framegate.lock               its holder writes here, and updates its modification time as a heartbeat
    <directory>/.framegate.writers            locked, shared, while control or a processor lives that may write here

A stream is what one run of one processor wrote: ``<node>.<slot>.<boot-id>``. A *logical offset* is a position in a stream: ``base`` (the
file's name, 20 digits) + position in the file - 4096. The next segment's base is the logical end of the segment before, so one integer
names a place permanently, also after rolling. Offsets point at blocks.

Segment: the header, then blocks back to back::

    0      8        12         16        20                  3968    4096
    | FGTAPLOG | version | json_len | crc32 of json | JSON, then zeros   | seal  | block | block | ...

    JSON: {"version", "node", "slot", "stream", "boot_id", "created_ns", "base"}

The seal is zeros while the segment is written, and then, before it gets its final name, ``SEAL``: the logical offset where its last block
ends, how many blocks it has, the sums of their counts of frames, when it was sealed, SEAL_FINAL when the stream ends here with all accounted
for, SEAL_CUT when a torn tail was cut off. A segment that does not end where its seal says is damaged.

Block: ``BLOCK_HEADER`` (128 bytes; ``headers``), then sections. Each section's place is in the header, relative to the block's start; sections and
the block itself are padded with zeros, sections to 8 bytes, the block to 64. A section that would be empty has length 0::

    +0          header       magic, lengths, counts, times, body CRC, and last the CRC of the header itself
    +header_len strings      JSON array: listeners, principals, peers and rules that the rows name by index
    +chunks_at  chunk table  chunk_count rows of CHUNK_ROW_BYTES
    +starts_at  starts       int32 for each stored frame: where it begins, relative to its chunk's data
    +sizes_at   sizes        int32 for each frame of the chunks with FLAG_SIZES: the body size it had on the wire
    +answers_at answers      int32 keys[answers_count], then int32 latencies_us[answers_count], for the chunks with FLAG_ANSWERS; in a block with
                             BLOCK_REQUESTS then also int32 request_sizes[answers_count] and int32 correlation_ids[answers_count]
    +data_at    data         the chunks' data back to back: frames as they passed

A block is valid when it lies wholly inside the file's size and both CRCs fit: ``header_crc`` over the header before it, ``body_crc``
over everything from ``header_len`` to ``block_len``, padding included. A torn tail fails that and is never read.

Chunk row (``CHUNK_FIELDS``; numpy: ``np.dtype({"names": …, "formats": …, "offsets": …, "itemsize": CHUNK_ROW_BYTES})``)::

      0 capture_ns      i64   wall clock; decreases within a stream only behind a row of kind clock
      8 connection      i64   id of the pair; -1: a gap of more than one connection; connection: ends that are not in the log
     16 first_frame     i64   number of the first frame (of the first lost one) on this connection and direction, from 0; -1 unknown
     24 original_bytes  i64   bytes of the chunk's frames on the wire, headers included; piece: where in the stored frame it begins;
                              gap, totals: when the last one was lost, or seen (0 before version 3: at capture_ns or earlier);
                              connection: when it ended
     32 lost_frames     i64   gap: whole frames that were received and are not in the log; totals: frames that were seen, stored or not;
                              FLAG_PIECES: offset behind which the pieces lie; connection -1: the number of ends
     40 lost_bytes      i64   gap, totals: their bytes; frames: bytes cut or withheld from this chunk, or (but with FLAG_PIECES) replaced
     48 lost_from_ns    i64   gap, totals: when the first one was lost, or seen; clock: the capture time before the step; connection: when it was
                              accepted; frames: when the first bytes of a frame that was cut through were received, else 0
     56 data_offset     i32   of the chunk's data within the data section
     60 data_length     i32
     64 frame_count     i32   frames: at least 1; gap, piece: 0
     68 starts_index    i32   index of the first start in the starts section; there are frame_count
     72 sizes_index     i32   same for sizes; -1 without FLAG_SIZES: then a body's size is its stored length
     76 answers_index   i32   same for answers; -1 without FLAG_ANSWERS
     80 listener        i32   index into strings; -1 unknown (gaps of a dead processor)
     84 principal       i32   index into strings; -1 none
     88 peer            i32   index into strings: the client, host:port; -1 unknown
     92 rule            i32   index into strings: the tap rule that matched; -1 none; kind rules: the rules in force from here on, as JSON; kind
                              connection: what the connection was, as JSON
     96 direction       u8    DIRECTIONS: 0 request (from the client), 1 response
     97 kind            u8    KINDS: 0 frames, 1 gap, 2 piece, 3 totals, 4 clock, 5 rules, 6 connection
     98 capture         u8    CAPTURES: 0 full, 1 lengths, 2 hash
     99 reason          u8    REASONS: why a gap, or why bytes were cut; 0 nothing is missing
    100 framing         u8    FRAMINGS: what the frames were on the wire; 0 int32
    101 protocol        u8    PROTOCOLS: 0 framed, 1 kafka
    102 flags           u16   FLAG_*

A stored frame is the slice of its chunk's data from its start to the next start (the last one's: to data_length). It begins with the
frame's own header as it passed: a big-endian int32 with the body's size *on the wire*; what follows is what was kept of the body: all of it
(full), its first bytes (FLAG_TRUNCATED), nothing (lengths, or a frame withheld: FLAG_WITHHELD), or HASH_BYTES of BLAKE2b (hash). With
FLAG_REPLACED ranges of what was kept are zeros, or HASH_BYTES of BLAKE2b of the range, repeated or cut to its length.
Frames of another framing are stored as int32 ones, and all bytes are counted as if they had come so; what their own header said besides the size
stands in front of the body, and its size is counted with it (grpc_message: 1 byte, mysql_packet: 1, header: all but the integer).

A frame that was cut through may lie in several blocks, and belongs to the chunk that completes it: a frames chunk of this one frame, with
FLAG_PIECES, whose data is the stored frame's end, and the last data of its block. What comes before are rows of kind ``piece`` with the same
connection, direction and first_frame, in order, in this block and in earlier ones, none before the offset in ``lost_frames``. The stored frame has
original_bytes - lost_bytes; what is not covered by pieces and that end is missing: retention took it, or its block could not be written.
Pieces without a chunk that completes them are ignored: their frame was cut short, or is in a gap. Readers join (``log_reader``): joined,
the chunk's data is the whole stored frame, without FLAG_PIECES and its offset, and pieces are no rows. When some are missing, it is what is
there from the frame's beginning to the first hole, at least the header; lost_bytes counts the rest, and the reason is ``pieces_lost``.

Other rows. ``totals``: what one listener and direction saw in one window (COMPLETENESS.md); ``clock``: the wall clock was set back, times before and
behind cannot be compared; ``rules``: behind this row, and before the next, chunks are by these rules; ``connection``: a connection has ended. They
have no data and no frames. The JSON of an end is the row ``closed`` of framegate's log (deploy/log.md) without what control adds, and with
``tap_rule``: the first rule in force that applies to the connection. A connection to which none applies has no row. With connection -1 a row stands
for ends that the log could not take, for its reason. Ends are no part of the accounting of frames.

Versions. A reader refuses segments of a later version than it knows. 4: ends of connections. 3: seals, ledger, totals, clock and rules, certainty and
end of gaps, requests of answers. 2: pieces; a block with any, or with FLAG_PIECES, has BLOCK_PIECES in its flags and its own magic, so that a reader
of version 1 stops there and misreads nothing. Other blocks are as in version 1, and segments of older versions are read as ever.

The accounting: every whole frame received on a connection and direction that a rule matched is either in a frames chunk or in ``lost_frames`` of
a gap.
"""

import re
import struct
from typing import Final, NamedTuple

FORMAT_VERSION: Final = 4
SEALED_SINCE: Final = 3  # sealed segments of this version and later have a seal
SEGMENT_HEADER_BYTES: Final = 4096
SEAL_AT: Final = 3968
BLOCK_HEADER_BYTES: Final = 128
CHUNK_ROW_BYTES: Final = 104
BLOCK_ALIGNMENT: Final = 64
SECTION_ALIGNMENT: Final = 8
FRAME_HEADER_BYTES: Final = 4
HASH_BYTES: Final = 16
# One chunk's data stays under this, so that every position in a block fits an int32; larger runs are kept as lengths.
MAX_CHUNK_BYTES: Final = 1 << 30

_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:[0-9]+|recovery)\.[A-Za-z0-9_-]+")
_SEGMENT_NAME: Final = re.compile(r"[0-9]{20}")
OPEN_SUFFIX: Final = ".open"
SEALED_SUFFIX: Final = ".seg"
CONSUMERS_FOLDER: Final = "_consumers"
LOCK_NAME: Final = ".framegate.lock"
WRITERS_NAME: Final = ".framegate.writers"
# Of everything in the tap's directory, also under a wider umask: only the owner and its group may read frames.
FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750

DIRECTION_REQUEST: Final = 0
DIRECTION_RESPONSE: Final = 1
DIRECTIONS: Final = ("request", "response")

KIND_FRAMES: Final = 0
KIND_GAP: Final = 1
KIND_PIECE: Final = 2
KIND_TOTALS: Final = 3
KIND_CLOCK: Final = 4
KIND_RULES: Final = 5
KIND_CONNECTION: Final = 6
KINDS: Final = ("frames", "gap", "piece", "totals", "clock", "rules", "connection")

CAPTURE_FULL: Final = 0
CAPTURE_LENGTHS: Final = 1
CAPTURE_HASH: Final = 2
CAPTURES: Final = ("full", "lengths", "hash")

FRAMING_INT32: Final = 0
FRAMINGS: Final = (*("int32", "uint32_le", "int16", "varint", "int32_inclusive", "grpc_message", "mysql_packet", "header", "lines", "lines_crlf"),)

PROTOCOL_FRAMED: Final = 0
PROTOCOL_KAFKA: Final = 1
PROTOCOLS: Final = ("framed", "kafka")

REASON_NONE: Final = 0
REASON_QUEUE_FULL: Final = 1
REASON_DISK_FULL: Final = 2
REASON_DISK_ERROR: Final = 3
REASON_SAMPLED: Final = 4
REASON_CAPTURE: Final = 5
REASON_WITHHELD: Final = 6
REASON_OVERSIZE: Final = 7
REASON_PARTIAL_FRAME: Final = 8
REASON_PROCESSOR_DIED: Final = 9
REASON_CLOSED: Final = 10
REASON_UNDELIVERED: Final = 11
REASON_PIECES_LOST: Final = 12
REASON_VANISHED: Final = 13
REASON_DAMAGED: Final = 14
# queue_full: the writer was too slow; disk_full: no space, or over quota; disk_error: any other failed write; sampled: the rule takes a share of
# connections or frames; capture: the rule keeps only a part of each body; withheld: SASL bytes; oversize: a run over MAX_CHUNK_BYTES;
# partial_frame: a frame that never became whole (no frame is counted); processor_died: upper bound, written by control; closed: the log was closed
# while it could not write; undelivered: received when the other side could take no more, and not passed on. Set by readers only: pieces_lost: not
# all pieces of a frame that was cut through are in the log; vanished: blocks were deleted before they were read; damaged: a CRC is wrong
REASONS: Final = (
    "none",
    "queue_full",
    "disk_full",
    "disk_error",
    "sampled",
    "capture",
    "withheld",
    "oversize",
    "partial_frame",
    "processor_died",
    "closed",
    "undelivered",
    "pieces_lost",
    "vanished",
    "damaged",
)

FLAG_SIZES: Final = 1  # the chunk has sizes: some frame may be stored in part
FLAG_ANSWERS: Final = 2  # the chunk has keys and latencies
FLAG_TRUNCATED: Final = 4  # a body was cut at the rule's max_frame_bytes
FLAG_WITHHELD: Final = 8  # a body was withheld because it carries credentials
FLAG_PIECES: Final = 16  # the chunk's data is the end of its only frame; pieces have the bytes before
FLAG_REPLACED: Final = 128  # bytes of a body are stored as zeros, or as their hash

FLAG_AT_MOST: Final = 32  # gap: lost_frames is an upper bound
FLAG_UNKNOWN: Final = 64  # gap: the number of lost frames is not known; lost_frames is 0
CERTAINTIES: Final = ("exact", "at_most", "unknown")

# Of a block's flags.
BLOCK_PIECES: Final = 1  # it has pieces, or a chunk with FLAG_PIECES
BLOCK_TOTALS: Final = 2  # it has rows of kind totals
BLOCK_REQUESTS: Final = 4  # its answers have request sizes and correlation ids

WINDOW_NS: Final = 60_000_000_000  # of capture time; totals and gaps do not cross windows

SEAL_FINAL: Final = 1  # of a seal's flags: the stream ends here, and every frame of it is accounted for
SEAL_CUT: Final = 2  # a torn tail was cut off behind the last block

# name, format (numpy's and struct's), offset; the docstring above describes each
CHUNK_FIELDS: Final = (
    ("capture_ns", "<i8", 0),
    ("connection", "<i8", 8),
    ("first_frame", "<i8", 16),
    ("original_bytes", "<i8", 24),
    ("lost_frames", "<i8", 32),
    ("lost_bytes", "<i8", 40),
    ("lost_from_ns", "<i8", 48),
    ("data_offset", "<i4", 56),
    ("data_length", "<i4", 60),
    ("frame_count", "<i4", 64),
    ("starts_index", "<i4", 68),
    ("sizes_index", "<i4", 72),
    ("answers_index", "<i4", 76),
    ("listener", "<i4", 80),
    ("principal", "<i4", 84),
    ("peer", "<i4", 88),
    ("rule", "<i4", 92),
    ("direction", "|u1", 96),
    ("kind", "|u1", 97),
    ("capture", "|u1", 98),
    ("reason", "|u1", 99),
    ("framing", "|u1", 100),
    ("protocol", "|u1", 101),
    ("flags", "<u2", 102),
)
CHUNK_ROW: Final = struct.Struct("<7q10i6BH")


class FormatError(ValueError):
    """Bytes that are not valid in this format or version. The message says what was found."""


class VersionError(FormatError):
    """Of a later version than this reader knows."""


class ChunkRow(NamedTuple):
    """One row of the chunk table, fields in the order of ``CHUNK_FIELDS``."""

    capture_ns: int
    connection: int
    first_frame: int
    original_bytes: int
    lost_frames: int
    lost_bytes: int
    lost_from_ns: int
    data_offset: int
    data_length: int
    frame_count: int
    starts_index: int
    sizes_index: int
    answers_index: int
    listener: int
    principal: int
    peer: int
    rule: int
    direction: int
    kind: int
    capture: int
    reason: int
    framing: int
    protocol: int
    flags: int


def stream_name(node: str, slot: str, boot_id: str) -> str:
    """The folder of what one run of one processor writes."""
    return f"{node}.{slot}.{boot_id}"


def is_stream_name(name: str) -> bool:
    """Whether a folder, or a line of the ledger, can be of a stream. A file system may have other folders in the tap's directory, like
    ``lost+found``.
    """
    return _STREAM_NAME.fullmatch(name) is not None


def segment_file(base: int, *, sealed: bool) -> str:
    """The file name of the segment that begins at the logical offset ``base``."""
    return f"{base:020d}{SEALED_SUFFIX if sealed else OPEN_SUFFIX}"


def is_segment_stem(stem: str) -> bool:
    """Whether a file's name, without its suffix, can be a segment's."""
    return _SEGMENT_NAME.fullmatch(stem) is not None


def padding(length: int, alignment: int) -> int:
    """How many zeros bring ``length`` to a multiple of ``alignment``."""
    return -length % alignment


def certainty(flags: int) -> str:
    """The certainty of a gap's counts, of ``CERTAINTIES``."""
    return CERTAINTIES[2 if flags & FLAG_UNKNOWN else 1 if flags & FLAG_AT_MOST else 0]
