"""One direction of one connection under one rule: the relay calls it for every run of frames."""

from typing import Final

from librt.strings import write_i32_le
from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import PART_FIRST, PART_LAST, Run
from framegate.proxy.tap.block import Part
from framegate.proxy.tap.block_builder import BlockBuilder, pack_codes
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.record import (
    CAPTURE_FULL,
    CAPTURE_HASH,
    FLAG_ANSWERS,
    FLAG_PIECES,
    FLAG_REPLACED,
    FLAG_SIZES,
    FLAG_TRUNCATED,
    FLAG_WITHHELD,
    KIND_FRAMES,
    KIND_PIECE,
    MAX_CHUNK_BYTES,
    REASON_NONE,
    REASON_PARTIAL_FRAME,
    REASON_SAMPLED,
    REASON_UNDELIVERED,
    WINDOW_NS,
)
from framegate.proxy.tap.redaction import Redaction, Redactor, new_digest
from framegate.proxy.tap.slicing import cut_reason, hash_body, write_cut, write_last_piece, write_piece, write_redacted, write_starts
from framegate.proxy.tap.tallies import Tallies, Tally
from framegate.proxy.tap.writer import TapWriter

MAX_I32: Final = (1 << 31) - 1


class TapPoint(FrameTap):
    """Appends the runs of one direction of one connection to the log, all by one rule. Loop thread only.

    Attributes:
        mutes: a full log must stop the source: call ``may_read`` before each read.
    """

    def __init__(
        self,
        *,
        writer: TapWriter,
        rule: str,
        listener: str,
        protocol: i64,
        framing: i64,
        direction: i64,
        principal: str | None,
        peer: str | None,
        connection: i64,
        capture: i64,
        max_frame_bytes: i64,
        mutes: bool,
        sampled_out: bool,
        redaction: Redaction | None = None,
    ) -> None:
        """Made by ``TapRules.match``.

        Args:
            protocol, framing, direction, capture: codes of ``record``.
            max_frame_bytes: body bytes kept of each frame under full capture; 0 keeps all.
            mutes: the rule says ``on_full: mute``.
            sampled_out: the rule's share of connections excludes this one; its frames are only counted, as a gap.
        """
        super().__init__(mutes and not sampled_out, asks=False)
        self._writer = writer
        self._tallies: Tallies = writer.tallies
        self._tally: Tally = writer.tallies.of(listener, direction)
        self._builder: BlockBuilder = writer.builder
        self._rule = rule
        self._listener = listener
        self._protocol: i64 = protocol
        self._framing: i64 = framing
        self._direction: i64 = direction
        self._principal = principal
        self._peer = peer
        self._connection: i64 = connection
        self._capture: i64 = capture
        self._max_frame_bytes: i64 = max_frame_bytes
        self._sampled_out = sampled_out
        self._redaction = redaction if capture == CAPTURE_FULL else None
        self._whole = capture == CAPTURE_FULL and max_frame_bytes == 0 and redaction is None
        self._codes: i64 = pack_codes(direction, KIND_FRAMES, capture, REASON_NONE, framing, protocol, 0)
        self._part: Part | None = None
        self._serial: i64 = -1
        self._listener_index: i32 = -1
        self._principal_index: i32 = -1
        self._peer_index: i32 = -1
        self._rule_index: i32 = -1
        self._gap: Gap | None = None
        self._leaves_out = False

    @property
    def is_within(self) -> bool:
        return self._part is not None

    def append(
        self,
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None = None,
        keys: vec[i32] | None = None,
        latencies: vec[i32] | None = None,
        request_sizes: vec[i32] | None = None,
        correlation_ids: vec[i32] | None = None,
    ) -> bool:
        frame_count = run.frames
        if keys is not None and (len(keys) != frame_count or latencies is None or len(latencies) != frame_count):
            raise ValueError(f"keys and latencies of {len(keys)} answers with {frame_count} frames")
        if request_sizes is not None and (len(request_sizes) != frame_count or correlation_ids is None or len(correlation_ids) != frame_count):
            raise ValueError(f"requests of {len(request_sizes)} answers with {frame_count} frames")
        writer = self._writer
        if capture_ns < self._builder.last_ns or capture_ns >= writer.window_end_ns:
            capture_ns = writer.turn(capture_ns)
        refusal = REASON_SAMPLED if self._sampled_out else 0 if self.mutes else writer.refusal()
        if refusal != 0:
            self._match(frame_count, run.size)
            self._lose(refusal, frame_count, run.size, first_frame, capture_ns)
            return True
        self._add(run, first_frame, capture_ns, sensitive, keys, latencies, request_sizes, correlation_ids)
        self._match(frame_count, run.size)
        writer.added()
        return not self.mutes or writer.has_capacity()

    def append_part(
        self,
        run: Run,
        frame_number: i64,
        capture_ns: i64,
        withheld: bool,
        key: int | None,
        latency_us: int | None,
        request_size: int = -1,
        correlation_id: int = -1,
    ) -> bool:
        part = self._part
        if run.part & PART_FIRST != 0:
            part = self._part = self._begin(run, frame_number, capture_ns, withheld)
        if part is None:
            return True
        part.passed += run.size
        if run.part & PART_LAST == 0:
            self._pass(part, run, capture_ns)
        else:
            self._part = None
            self._complete(part, run, capture_ns, key, latency_us, request_size, correlation_id)
        return not self.mutes or self._writer.has_capacity()

    def leave_out(self) -> None:
        """The rule's share of frames excludes the frame that begins with the next piece."""
        self._leaves_out = True

    def cut_short(self, capture_ns: i64) -> None:
        part = self._part
        if part is not None:
            self._part = None
            self.lose(REASON_PARTIAL_FRAME, 0, int(part.passed), int(part.number), int(capture_ns))

    def may_read(self) -> bool:
        return not self.mutes or self._writer.has_capacity()

    def drop(self, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64, run: Run | None = None) -> None:
        self.miss(REASON_UNDELIVERED, frame_count, byte_count, first_frame, capture_ns)

    def miss(self, reason: i64, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64) -> None:
        """Count frames that the rule matched and that are in the log as a gap only, with a reason; see ``drop``."""
        if capture_ns < self._builder.last_ns or capture_ns >= self._writer.window_end_ns:
            capture_ns = self._writer.turn(capture_ns)
        self._match(frame_count, byte_count)
        self._lose(REASON_SAMPLED if self._sampled_out else reason, frame_count, byte_count, first_frame, capture_ns)

    def _match(self, frame_count: i64, byte_count: i64) -> None:
        """Count frames as seen, before they are sent on."""
        tally = self._tally
        tally.frames += frame_count
        tally.bytes += byte_count
        if tally.frames > tally.reserved:
            self._tallies.reserve(tally)

    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        gap = self._new_gap(reason, first_frame, capture_ns)
        self._writer.lose(gap, frame_count, byte_count, capture_ns)

    def _add(
        self,
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None,
        keys: vec[i32] | None,
        latencies: vec[i32] | None,
        request_sizes: vec[i32] | None,
        correlation_ids: vec[i32] | None,
    ) -> None:
        builder = self._prepared()
        data_offset = builder.data_len
        starts_index = builder.starts_count
        sizes_index: i64 = -1
        answers_index: i64 = -1
        lost_bytes: i64 = 0
        codes = self._codes
        if self._whole and (sensitive is None or len(sensitive) == 0) and run.size <= MAX_CHUNK_BYTES:
            write_starts(run, builder.starts)
            if run.head is not None:
                builder.add_pieces(run.head)
            builder.add_piece(run.tail())
        else:
            sizes_index = builder.sizes_count
            redaction = self._redaction
            if redaction is not None:
                flags, replaced = write_redacted(redaction, builder, run, sensitive, self._cap(run.size))
                lost_bytes = run.size - (builder.data_len - data_offset) + replaced
            else:
                hashes = self._capture == CAPTURE_HASH
                flags, bodies = write_cut(builder, run, sensitive, self._cap(run.size), hashes and run.size <= MAX_CHUNK_BYTES)
                lost_bytes = bodies if hashes else run.size - (builder.data_len - data_offset)  # the bytes of a hash are not bytes of the body
            codes |= (cut_reason(run.size, lost_bytes, flags) << 24) | ((flags | FLAG_SIZES) << 48)
            builder.sizes_count += run.frames
        builder.starts_count += run.frames
        if keys is not None and latencies is not None:
            answers_index = builder.answers_count
            codes |= FLAG_ANSWERS << 48
            builder.add_answers(keys, latencies, request_sizes, correlation_ids)
        builder.add_frames_row(
            capture_ns,
            self._connection,
            first_frame,
            run.size,
            lost_bytes,
            data_offset,
            run.frames,
            starts_index,
            sizes_index,
            answers_index,
            self._listener_index,
            self._principal_index,
            self._peer_index,
            self._rule_index,
            codes,
        )

    def _cap(self, run_size: i64) -> i64:
        """Most bytes of each body that are stored."""
        if self._capture != CAPTURE_FULL or run_size > MAX_CHUNK_BYTES:
            return 0
        return self._max_frame_bytes if self._max_frame_bytes > 0 else MAX_CHUNK_BYTES

    def _begin(self, run: Run, number: i64, capture_ns: i64, withheld: bool) -> Part:
        """Decide what to store of a frame that is cut through, at its first piece."""
        header, body = run.first_sizes()
        size = header + body
        cap: i64 = 0 if withheld else self._cap(size)
        room: i64 = 0
        if cap > 0:
            room = size if body < cap else header + cap
        first_ns = capture_ns if capture_ns > self._builder.last_ns else self._builder.last_ns
        part = Part(number, run.prefix(header), body, first_ns, self._writer.thread.bytes_flushed, room, withheld)
        if self._capture == CAPTURE_HASH and not withheld and size <= MAX_CHUNK_BYTES:
            part.digest = new_digest()
        if self._sampled_out or self._leaves_out:
            part.lost = REASON_SAMPLED
        elif self._redaction is not None and room > header:
            part.redactor = Redactor(self._redaction, room - header)
        self._leaves_out = False
        return part

    def _refused(self, part: Part) -> bool:
        """Whether the frame cannot be stored: a part of it is lost, or the log refuses the next part."""
        if part.lost == 0 and not self.mutes:
            part.lost = self._writer.refusal()
        return part.lost != 0

    def _pass(self, part: Part, run: Run, capture_ns: i64) -> None:
        """Store a piece that is not the last."""
        if part.digest is not None:
            hash_body(part.digest, run)
        if part.stored >= part.room or self._refused(part):
            return
        builder = self._prepared()
        offset = builder.data_len
        begin = part.stored
        write_piece(builder, part, run)
        if part.stored == begin:
            return  # a hash is stored at the end of its range
        self._add_part_row(part, capture_ns, begin, 0, offset, -1, -1, self._codes | (KIND_PIECE << 8))
        builder.add_part(part)
        self._writer.added()

    def _complete(
        self, part: Part, run: Run, capture_ns: i64, key: int | None, latency_us: int | None, request_size: int, correlation_id: int
    ) -> None:
        """Make a chunk of a frame whose last piece came, or a gap."""
        if capture_ns < self._builder.last_ns or capture_ns >= self._writer.window_end_ns:
            capture_ns = self._writer.turn(capture_ns)
        self._match(1, part.size)
        if self._refused(part):
            self._lose(part.lost, 1, part.size, part.number, capture_ns)
            return
        builder = self._prepared()
        offset = builder.data_len
        answers_index: i64 = -1
        flags: i64 = FLAG_SIZES
        if part.stored > 0:
            flags |= FLAG_PIECES
            builder.add_part(part)
        if part.withheld:
            flags |= FLAG_WITHHELD
        elif 0 < part.room < part.size:
            flags |= FLAG_TRUNCATED
        if key is not None and latency_us is not None:
            answers_index = builder.answers_count
            flags |= FLAG_ANSWERS
            builder.add_answer(i32(key), i32(min(latency_us, MAX_I32)), i32(request_size), i32(correlation_id))
        write_last_piece(builder, part, run)
        lost_bytes = part.body if self._capture == CAPTURE_HASH else part.size - part.stored
        redactor = part.redactor
        if redactor is not None and redactor.replaced > 0:
            flags |= FLAG_REPLACED
            if flags & FLAG_PIECES == 0:
                lost_bytes += redactor.replaced
        sizes_index = builder.sizes_count
        write_i32_le(builder.starts, 0)
        write_i32_le(builder.sizes, i32(part.body))
        codes = self._codes | (cut_reason(part.size, lost_bytes, flags) << 24) | (flags << 48)
        self._add_part_row(part, capture_ns, part.size, lost_bytes, offset, sizes_index, answers_index, codes)
        builder.starts_count += 1
        builder.sizes_count += 1
        if flags & FLAG_PIECES != 0:
            self._writer.joined()
        else:
            self._writer.added()

    def _add_part_row(
        self,
        part: Part,
        capture_ns: i64,
        original_bytes: i64,
        lost_bytes: i64,
        data_offset: i64,
        sizes_index: i64,
        answers_index: i64,
        codes: i64,
    ) -> None:
        """Add the row of a piece, or of the chunk that completes its frame; only the latter has sizes."""
        builder = self._builder
        completes = sizes_index >= 0
        if capture_ns < builder.last_ns:
            capture_ns = builder.last_ns
        builder.add_frames_row(
            capture_ns,
            self._connection,
            part.number,
            original_bytes,
            lost_bytes,
            data_offset,
            1 if completes else 0,
            builder.starts_count,
            sizes_index,
            answers_index,
            self._listener_index,
            self._principal_index,
            self._peer_index,
            self._rule_index,
            codes,
            part.pieces_from if (codes >> 48) & FLAG_PIECES != 0 else 0,
            part.first_ns if completes else 0,
        )

    def _prepared(self) -> BlockBuilder:
        """The block being built, ready for a row of this point."""
        builder = self._builder
        if self._serial != builder.serial:
            self._intern(builder)
        if self.mutes:
            builder.must_keep = True
        return builder

    def _intern(self, builder: BlockBuilder) -> None:
        """Look this point's strings up in the block being built."""
        self._writer.add_rules()
        self._serial = builder.serial
        self._listener_index = builder.string(self._listener)
        self._principal_index = builder.string(self._principal)
        self._peer_index = builder.string(self._peer)
        self._rule_index = builder.string(self._rule)

    def _lose(self, reason: i64, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64) -> None:
        gap = self._gap
        if gap is None or gap.written or gap.reason != reason or gap.window != capture_ns // WINDOW_NS:
            gap = self._new_gap(reason, first_frame, capture_ns)
        self._gap = self._writer.lose(gap, frame_count, byte_count, capture_ns)

    def _new_gap(self, reason: i64, first_frame: i64, capture_ns: i64) -> Gap:
        return Gap(
            connection=self._connection,
            direction=self._direction,
            reason=reason,
            framing=self._framing,
            protocol=self._protocol,
            capture=self._capture,
            listener=self._listener,
            principal=self._principal,
            peer=self._peer,
            rule=self._rule,
            first_frame=first_frame,
            from_ns=capture_ns,
        )
