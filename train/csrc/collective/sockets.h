// One stream socket to every other rank, and the transfers under way on them.
#pragma once

#include <poll.h>

#include <deque>
#include <string>
#include <vector>

#include "collective/failure.h"
#include "collective/types.h"

namespace taco::collective {

// Precedes every payload. Ranks have one byte order: x86-64.
struct Header {
    uint32_t magic = 0;
    uint32_t tag = 0;
    uint64_t operation = 0;  // number of the operation on this communicator; 0 for `exchange`
    Description description;
    uint64_t bytes = 0;
};

std::string describe(const Description& description);

// Non-blocking transfers: `send` and `receive` register them, `progress` moves bytes of all.
class Mesh {
public:
    // `sockets[r]`: connected stream socket to rank r, -1 for this rank. The mesh closes them.
    // `numbers[r]`: of rank r in messages: a subgroup's ranks have those of all ranks.
    Mesh(int rank, std::vector<int> sockets, std::vector<int> numbers);
    ~Mesh();
    Mesh(const Mesh&) = delete;
    Mesh& operator=(const Mesh&) = delete;

    // All messages until the next call belong to this operation.
    void begin(uint64_t operation, const Description& description);

    // `data` stays valid and unchanged, and `*pending` is decremented, when the bytes are sent.
    void send(int peer, uint32_t tag, const void* data, size_t bytes, int* pending);

    // `*pending` is decremented when the message with this tag is in `data`. A message of another
    // length is a mismatch, unless `received` is set: then up to `bytes` are taken.
    void receive(int rank, uint32_t tag, void* data, size_t bytes, int* pending,
                 size_t* received = nullptr);

    // Moves what can be moved without waiting; returns whether a byte moved.
    // Throws Failure: a peer is gone, or asks for another operation.
    bool progress();

    bool idle() const { return num_transfers_ == 0; }
    // A rank whose bytes are missing, -1 if none.
    int awaited_rank() const;
    // Adds the sockets that can make progress.
    void add_polled(std::vector<pollfd>& polled) const;
    // Whether the peer has closed its socket: it will never send again.
    bool has_closed(int peer) const;
    int size() const { return static_cast<int>(peers_.size()); }
    // "rank 3", as messages name it.
    std::string name_of(int rank) const { return "rank " + std::to_string(numbers_[rank]); }

private:
    struct Send {
        Header header;
        const char* data;
        size_t done;  // of header and payload
        int* pending;
    };
    struct Receive {
        uint32_t tag;
        char* data;
        size_t capacity;
        int* pending;
        size_t* received;
    };
    // A message that came before its transfer was registered. Others may wait behind it.
    struct Early {
        uint32_t tag;
        std::vector<char> data;
    };
    struct Peer {
        int socket = -1;
        std::deque<Send> sends;
        std::vector<Receive> receives;  // whose message has not begun to arrive
        int num_receives = 0;           // with the one whose message arrives
        std::vector<Early> early;
        Header header;           // of the message that arrives
        size_t header_done = 0;  // bytes of the header
        size_t data_done = 0;    // bytes of the payload
        bool matched = false;    // `current` is that of the message that arrives
        Receive current{};
    };

    bool progress_sends(int rank, Peer& peer);
    bool progress_receives(int rank, Peer& peer);
    void match(int rank, Peer& peer);
    void check_length(int rank, const Receive& receive, size_t bytes) const;
    void finish_receive(Peer& peer);
    void finish(const Receive& receive, size_t bytes);
    [[noreturn]] void fail_closed(int rank, const char* what) const;

    int rank_;
    std::vector<Peer> peers_;
    std::vector<int> numbers_;
    uint64_t operation_ = 0;
    Description description_;
    size_t num_transfers_ = 0;
};

}  // namespace taco::collective
