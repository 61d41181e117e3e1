#include "collective/sockets.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace taco::collective {
namespace {

constexpr uint32_t kMagic = 0x54434c31;  // "TCL1"

const char* name_of(Kind kind) {
    static const char* const names[] = {"no operation", "all_reduce",     "all_gather", "broadcast",
                                        "all_to_all",   "reduce_scatter", "barrier",    "exchange"};
    const auto index = static_cast<size_t>(kind);
    return index < std::size(names) ? names[index] : "an unknown operation";
}

const char* name_of(Type type) {
    static const char* const names[] = {"float16", "bfloat16", "float32", "float64", "uint8",
                                        "int8",    "int16",    "int32",   "int64",   "bool"};
    const auto index = static_cast<size_t>(type);
    return index < std::size(names) ? names[index] : "unknown";
}

const char* name_of(Reduction reduction) {
    static const char* const names[] = {"sum", "average", "min", "max", "product"};
    const auto index = static_cast<size_t>(reduction);
    return index < std::size(names) ? names[index] : "unknown";
}

}  // namespace

std::string describe(const Description& description) {
    std::string text = name_of(description.kind);
    if (description.kind == Kind::none || description.kind == Kind::exchange ||
        description.kind == Kind::barrier) {
        return text;
    }
    text += "(" + std::to_string(description.count) + " " + name_of(description.type);
    if (description.kind == Kind::all_reduce || description.kind == Kind::reduce_scatter) {
        text += std::string(", ") + name_of(description.reduction);
        text += ", wire " + std::to_string(description.wire);
    }
    if (description.kind == Kind::broadcast) text += ", root " + std::to_string(description.extra);
    return text + ")";
}

Mesh::Mesh(int rank, std::vector<int> sockets, std::vector<int> numbers)
    : rank_(rank), peers_(sockets.size()), numbers_(std::move(numbers)) {
    for (size_t i = 0; i < sockets.size(); ++i) peers_[i].socket = sockets[i];
}

Mesh::~Mesh() {
    for (Peer& peer : peers_) {
        if (peer.socket >= 0) close(peer.socket);
    }
}

void Mesh::begin(uint64_t operation, const Description& description) {
    operation_ = operation;
    description_ = description;
}

void Mesh::send(int peer, uint32_t tag, const void* data, size_t bytes, int* pending) {
    const Header header{kMagic, tag, operation_, description_, bytes};
    peers_[peer].sends.push_back({header, static_cast<const char*>(data), 0, pending});
    ++num_transfers_;
}

void Mesh::receive(int rank, uint32_t tag, void* data, size_t bytes, int* pending,
                   size_t* received) {
    Peer& peer = peers_[rank];
    const Receive receive{tag, static_cast<char*>(data), bytes, pending, received};
    ++num_transfers_;
    for (size_t i = 0; i < peer.early.size(); ++i) {
        if (peer.early[i].tag != tag) continue;
        const std::vector<char> arrived = std::move(peer.early[i].data);
        peer.early.erase(peer.early.begin() + i);
        check_length(rank, receive, arrived.size());
        if (peer.matched && !peer.current.pending && peer.current.tag == tag) {
            // It still arrives: the rest comes where it belongs.
            std::memcpy(data, arrived.data(), peer.data_done);
            peer.current = receive;
            ++peer.num_receives;
            return;
        }
        if (!arrived.empty()) std::memcpy(data, arrived.data(), arrived.size());
        return finish(receive, arrived.size());
    }
    peer.receives.push_back(receive);
    ++peer.num_receives;
}

bool Mesh::progress() {
    if (num_transfers_ == 0) return false;
    bool moved = false;
    for (int rank = 0; rank < size(); ++rank) {
        Peer& peer = peers_[rank];
        if (!peer.sends.empty()) moved |= progress_sends(rank, peer);
        if (peer.num_receives > 0) moved |= progress_receives(rank, peer);
    }
    return moved;
}

bool Mesh::progress_sends(int rank, Peer& peer) {
    bool moved = false;
    while (!peer.sends.empty()) {
        Send& send = peer.sends.front();
        const size_t total = sizeof(Header) + send.header.bytes;
        iovec parts[2];
        int num_parts = 0;
        if (send.done < sizeof(Header)) {
            parts[num_parts++] = {reinterpret_cast<char*>(&send.header) + send.done,
                                  sizeof(Header) - send.done};
        }
        const size_t data_done = send.done > sizeof(Header) ? send.done - sizeof(Header) : 0;
        if (send.header.bytes > data_done) {
            parts[num_parts++] = {const_cast<char*>(send.data) + data_done,
                                  send.header.bytes - data_done};
        }
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = num_parts;
        const ssize_t sent = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EINTR) return moved;
            fail_closed(rank, std::strerror(errno));
        }
        moved = true;
        send.done += sent;
        if (send.done < total) return moved;
        --*send.pending;
        --num_transfers_;
        peer.sends.pop_front();
    }
    return moved;
}

bool Mesh::progress_receives(int rank, Peer& peer) {
    bool moved = false;
    while (peer.num_receives > 0) {
        if (peer.header_done == sizeof(Header) && !peer.matched) match(rank, peer);
        char* target = reinterpret_cast<char*>(&peer.header) + peer.header_done;
        size_t wanted = sizeof(Header) - peer.header_done;
        if (wanted == 0) {
            target = peer.current.data + peer.data_done;
            wanted = peer.header.bytes - peer.data_done;
        }
        if (wanted > 0) {
            const ssize_t got = recv(peer.socket, target, wanted, MSG_DONTWAIT);
            if (got == 0) fail_closed(rank, "connection closed");
            if (got < 0) {
                if (errno == EAGAIN || errno == EINTR) return moved;
                fail_closed(rank, std::strerror(errno));
            }
            moved = true;
            if (peer.header_done < sizeof(Header)) {
                peer.header_done += got;
                continue;
            }
            peer.data_done += got;
        }
        if (peer.data_done == peer.header.bytes) {
            moved = true;
            finish_receive(peer);
        }
    }
    return moved;
}

// Finds the transfer of the message whose header is complete, or memory if it comes early.
void Mesh::match(int rank, Peer& peer) {
    const Header& header = peer.header;
    const std::string who = name_of(rank);
    if (header.magic != kMagic) {
        throw Failure(Code::broken, rank, who + " sent bytes that are no message");
    }
    if (header.operation != operation_ || !(header.description == description_)) {
        throw Failure(Code::mismatch, rank,
                      "ranks disagree: " + who + " called " + describe(header.description) +
                          " as operation " + std::to_string(header.operation) + ", " +
                          name_of(rank_) + " called " + describe(description_) + " as operation " +
                          std::to_string(operation_));
    }
    peer.matched = true;
    for (size_t i = 0; i < peer.receives.size(); ++i) {
        if (peer.receives[i].tag != header.tag) continue;
        peer.current = peer.receives[i];
        check_length(rank, peer.current, header.bytes);
        peer.receives.erase(peer.receives.begin() + i);
        return;
    }
    peer.early.push_back({header.tag, std::vector<char>(header.bytes)});
    peer.current = {header.tag, peer.early.back().data.data(), header.bytes, nullptr, nullptr};
}

void Mesh::check_length(int rank, const Receive& receive, size_t bytes) const {
    if (receive.received ? bytes <= receive.capacity : bytes == receive.capacity) return;
    throw Failure(Code::mismatch, rank,
                  "ranks disagree: " + name_of(rank) + " sent " + std::to_string(bytes) +
                      " bytes, " + name_of(rank_) + " expected " +
                      std::to_string(receive.capacity));
}

void Mesh::finish_receive(Peer& peer) {
    const Receive receive = peer.current;
    peer.header_done = peer.data_done = 0;
    peer.matched = false;
    if (!receive.pending) return;  // early
    --peer.num_receives;
    finish(receive, peer.header.bytes);
}

void Mesh::finish(const Receive& receive, size_t bytes) {
    if (receive.received) *receive.received = bytes;
    --*receive.pending;
    --num_transfers_;
}

int Mesh::awaited_rank() const {
    for (int rank = 0; rank < size(); ++rank) {
        if (peers_[rank].num_receives > 0) return rank;
    }
    for (int rank = 0; rank < size(); ++rank) {
        if (!peers_[rank].sends.empty()) return rank;
    }
    return -1;
}

void Mesh::add_polled(std::vector<pollfd>& polled) const {
    for (const Peer& peer : peers_) {
        short events = 0;
        if (!peer.sends.empty()) events |= POLLOUT;
        if (peer.num_receives > 0) events |= POLLIN;
        if (events) polled.push_back({peer.socket, events, 0});
    }
}

bool Mesh::has_closed(int peer) const {
    if (peers_[peer].socket < 0) return false;
    pollfd polled{peers_[peer].socket, POLLRDHUP, 0};
    return poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

void Mesh::fail_closed(int rank, const char* what) const {
    throw Failure(Code::closed, rank, name_of(rank) + " is gone (" + what + ")");
}

}  // namespace taco::collective
