"""What Redis counts of a tenant, and the Lua scripts that do it in one go.

What a minute allows is counted by the generic cell rate algorithm (ITU-T I.371): of each limit only
the moment is kept at which nothing of it will be in use any more. Something may be taken while that
moment, with it, is at most a minute away; so a minute's worth may come at once and comes back
evenly, and more than was there may be charged afterwards. A key expires at its moment, and a key
that is not there is a limit of which nothing is used. Requests that run are leases in a sorted set
by their end: those of a gateway that was killed expire. All times are Redis' own, in milliseconds.
"""

from taco_proto.limits import Limit
from taco_proto.requests import Tenant

# KEYS: requests, tokens, leases.
_COMMON = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local MINUTE = 60000
local function free_at(key)
  return math.max(tonumber(redis.call('GET', key) or '') or 0, now)
end
local function charge(key, limit, amount)
  if limit == 0 or amount == 0 then return end
  local at = free_at(key) + amount * MINUTE / limit
  if at > now then
    redis.call('SET', key, string.format('%.3f', at), 'PX', math.ceil(at - now))
  else
    redis.call('DEL', key)
  end
end
local function lease(key, member, length)
  redis.call('ZADD', key, string.format('%.3f', now + length), member)
  redis.call('PEXPIRE', key, length)
end
"""

# ARGV: limits of requests and tokens a minute and of requests at a time (0: none), tokens, lease,
# its length. Gives the number of the limit that is reached, in that order, or 0; and after how many
# milliseconds to come again.
ADMIT = (
    _COMMON
    + """
local requests, tokens, concurrent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local amount, length = tonumber(ARGV[4]), tonumber(ARGV[6])
local function wait_for(key, limit, wanted)
  if limit == 0 then return 0 end
  return free_at(key) + wanted * MINUTE / limit - MINUTE - now
end
if concurrent > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.3f', now))
  if redis.call('ZCARD', KEYS[3]) >= concurrent then return {3, 0} end
end
local wait = wait_for(KEYS[1], requests, 1)
if wait > 1 then return {1, math.ceil(wait)} end
wait = wait_for(KEYS[2], tokens, amount)
if wait > 1 then return {2, math.ceil(wait)} end
charge(KEYS[1], requests, 1)
charge(KEYS[2], tokens, amount)
if concurrent > 0 then lease(KEYS[3], ARGV[5], length) end
return {0, 0}
"""
)
REACHED = (None, Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENT)

# ARGV: the limit of requests, and how many to charge; the same of tokens (what is below 0 is given
# back); the length of a lease, how many leases end, these, and those that go on.
SETTLE = (
    _COMMON
    + """
charge(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]))
charge(KEYS[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
local length, first_renewed = tonumber(ARGV[5]), 7 + tonumber(ARGV[6])
for i = 7, first_renewed - 1 do redis.call('ZREM', KEYS[3], ARGV[i]) end
for i = first_renewed, #ARGV do lease(KEYS[3], ARGV[i], length) end
return 0
"""
)


def limit_keys(tenant: Tenant) -> tuple[str, str, str]:
    """What both scripts take as KEYS."""
    prefix = f"taco:limits:{{{tenant.name}}}"
    return f"{prefix}:requests", f"{prefix}:tokens", f"{prefix}:leases"
