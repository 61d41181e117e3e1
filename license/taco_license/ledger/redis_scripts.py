"""What several license servers do in Redis: Lua scripts, each of which happens at once or not.

The keys: a hash with the license and the time, the seats by GPU, their deadlines by GPU, and the
audit log. A seat is the start of its holder's newest client, in 19 digits so that texts compare as
numbers do, and behind it the holder. Times are Redis' own, in milliseconds, and so are the ids of
the audit log's entries.
"""

from taco_license.ledger.leases import LEASE_SECONDS
from taco_license.ledger.ledger import LIMITED_EVENTS, MAX_AUDITED_CHANGES, more_changes

STATE = "taco:{license}:state"
SEATS = "taco:{license}:seats"
DEADLINES = "taco:{license}:deadlines"
AUDIT = "taco:{license}:audit"
KEYS = (STATE, SEATS, DEADLINES, AUDIT)
DIGITS = 19  # of a number up to 2**63 - 1
# The audit log's length, about: Redis has it in memory, some 100 bytes an entry.
MAX_AUDIT_ENTRIES = 1_000_000
# Servers tick each second. Where Redis has heard nothing for so long, or has a clock that was set
# by more, nobody could keep a seat.
UNSEEN_SECONDS = 10.0
# How much of the time may be forgotten when the clock is set back.
CLOCK_STEP_SECONDS = 1.0

REDIS_TIME = "redis.call('TIME')"

_COMMON = f"""
local clock = CLOCK
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local LEASE = {LEASE_SECONDS * 1000:.0f}
local state = redis.call('HMGET', KEYS[1], 'version', 'latest', 'ticked', 'minute', 'changes')
local version = state[1] or ''
local latest = math.max(tonumber(state[2] or 0), now)
local passed = now - tonumber(state[3] or now)
local minute = string.format('%d', math.floor(now / 60000))
local changes = tonumber(state[5] or 0)
local limited = {{{", ".join(f"['{event}'] = true" for event in sorted(LIMITED_EVENTS))}}}
local function note(event, ...)
  if limited[event] then
    changes = changes + 1
    redis.call('HSET', KEYS[1], 'minute', minute, 'changes', changes)
    if changes > {MAX_AUDITED_CHANGES} then return end
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', {MAX_AUDIT_ENTRIES}, '*', 'event', event, ...)
end
if state[4] ~= minute then
  if changes > {MAX_AUDITED_CHANGES} then
    note('more', 'detail', string.format('{more_changes("%d")}', changes - {MAX_AUDITED_CHANGES}))
    redis.call('HSET', KEYS[1], 'minute', minute, 'changes', 0)
  end
  changes = 0
end
local function started_of(seat) return seat:sub(1, {DIGITS}) end
local function holder_of(seat) return seat:sub({DIGITS + 1}) end
local function free(event, gpu)
  local seat = redis.call('HGET', KEYS[2], gpu)
  redis.call('HDEL', KEYS[2], gpu)
  redis.call('ZREM', KEYS[3], gpu)
  note(event, 'gpu', gpu, 'instance', holder_of(seat))
end
if math.abs(passed) >= {UNSEEN_SECONDS * 1000:.0f} then
  for _, gpu in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('ZADD', KEYS[3], now + LEASE, gpu)
  end
else
  for _, gpu in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do free('lapsed', gpu) end
end
if not state[3] or math.abs(passed) >= {CLOCK_STEP_SECONDS * 1000:.0f} then
  redis.call('HSET', KEYS[1], 'latest', latest, 'ticked', now)
end
"""

# Gives the version of the license that holds, the latest time that was seen, the time, and the
# number of seats that are taken.
TICK = "return {version, latest, now, redis.call('HLEN', KEYS[2])}"

# ARGV: the version that the server knows, when it expires, its limit, started, instance, GPUs.
# Gives what became of it: `stale` (another version holds); `in_use`, the GPU and its holder;
# `no_seat`, how many are taken and how many more were asked for; `expired`, `granted` or `renewed`,
# and the latest time that was seen.
TAKE = """
if version ~= ARGV[1] then return {'stale'} end
if latest >= tonumber(ARGV[2]) then return {'expired', latest} end
local limit, started, instance = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local seats = redis.call('HMGET', KEYS[2], unpack(ARGV, 6))
local num_new = 0
for i, seat in ipairs(seats) do
  if not seat then
    num_new = num_new + 1
  elseif holder_of(seat) ~= instance then
    return {'in_use', ARGV[5 + i], holder_of(seat)}
  end
end
local taken = redis.call('HLEN', KEYS[2])
if num_new > 0 and limit > 0 and taken + num_new > limit then
  return {'no_seat', taken, num_new}
end
for i, seat in ipairs(seats) do
  local gpu = ARGV[5 + i]
  if not seat then note('granted', 'gpu', gpu, 'instance', instance) end
  if not seat or started_of(seat) < started then
    redis.call('HSET', KEYS[2], gpu, started .. instance)
  end
  redis.call('ZADD', KEYS[3], now + LEASE, gpu)
end
return {num_new > 0 and 'granted' or 'renewed', latest}
"""

# ARGV: started, instance, GPUs.
RELEASE = """
for i = 3, #ARGV do
  local seat = redis.call('HGET', KEYS[2], ARGV[i])
  if seat and holder_of(seat) == ARGV[2] and started_of(seat) <= ARGV[1] then
    free('released', ARGV[i])
  end
end
return 1
"""

# ARGV: a version, its file, when it expires (0: this is not asked), a version that may be replaced
# in any case, the latest time from then on, for the audit log what happened and its detail, and the
# GPUs that it names. Gives `done`; `same`, it holds already; `older` and the version that holds; or
# `expired`.
REPLACE = """
local is_useless = version == ARGV[4]
local is_same = version == ARGV[1] and not is_useless
local is_newer = version:sub(1, DIGITS) < ARGV[1]:sub(1, DIGITS)
if not (version == '' or is_same or is_useless or is_newer) then return {'older', version} end
local expires = tonumber(ARGV[3])
if expires > 0 and expires <= now then return {'expired'} end
if is_same then return {'same'} end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2], 'latest', ARGV[5])
note(ARGV[6], 'detail', ARGV[7])
local licensed = {}
for i = 8, #ARGV do licensed[ARGV[i]] = true end
for _, gpu in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not licensed[gpu] then free('dropped', gpu) end
end
return {'done'}
""".replace("DIGITS", str(DIGITS))


def script(body: str, clock: str = REDIS_TIME) -> str:
    """A script's text.

    Args:
        clock: Lua that gives the seconds since the epoch and the microseconds of the next one.
    """
    return _COMMON.replace("CLOCK", clock) + body
