// Sends each packet of an interface out of another one, a fixed time after it came.
//
// Packets are read and written in batches: without segmentation offload a link of 1 Gbit/s has
// 83,000 of them a second in each direction.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <new>
#include <vector>

namespace {

// The largest packet before segmentation, with its virtio_net_hdr and link header.
constexpr size_t max_packet_bytes = 1 << 17;
constexpr int batch = 64;
constexpr int64_t nanoseconds = 1'000'000'000;

struct Packet {
    int64_t due;  // nanoseconds of the monotonic clock
    int socket;   // that sends it
    size_t bytes;
    std::unique_ptr<char[]> data;
};

int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * nanoseconds + time.tv_nsec;
}

class Relay {
public:
    Relay(const int32_t* near, const int32_t* far, int num_pairs, int64_t delay)
        : delay_(delay), buffer_(batch * max_packet_bytes) {
        for (int i = 0; i < num_pairs; i++) {
            add(near[i], far[i]);
            add(far[i], near[i]);
        }
        for (int i = 0; i < batch; i++) received_[i] = {&buffer_[i * max_packet_bytes], 0};
    }

    // Returns errno if the sockets cannot be waited for.
    int serve() {
        while (true) {
            if (wait() < 0 && errno != EINTR) return errno;
            for (size_t i = 0; i < polled_.size(); i++) {
                if (polled_[i].revents) receive(polled_[i].fd, targets_[i]);
            }
            send_due();
        }
    }

private:
    void add(int from, int to) {
        polled_.push_back({from, POLLIN, 0});
        targets_.push_back(to);
    }

    int wait() {
        if (waiting_.empty()) return ppoll(polled_.data(), polled_.size(), nullptr, nullptr);
        const int64_t left = std::max<int64_t>(0, waiting_.front().due - now());
        const timespec time{left / nanoseconds, left % nanoseconds};
        return ppoll(polled_.data(), polled_.size(), &time, nullptr);
    }

    void receive(int from, int to) {
        mmsghdr messages[batch] = {};
        for (int i = 0; i < batch; i++) {
            received_[i].iov_len = max_packet_bytes;
            messages[i].msg_hdr.msg_iov = &received_[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        const int count = recvmmsg(from, messages, batch, MSG_DONTWAIT, nullptr);
        const int64_t due = now() + delay_;
        for (int i = 0; i < count; i++) {
            const size_t bytes = messages[i].msg_len;
            std::unique_ptr<char[]> data(new char[bytes]);
            std::memcpy(data.get(), received_[i].iov_base, bytes);
            waiting_.push_back({due, to, bytes, std::move(data)});
        }
    }

    void send_due() {
        const int64_t time = now();
        while (!waiting_.empty() && waiting_.front().due <= time) {
            mmsghdr messages[batch] = {};
            iovec parts[batch];
            const int socket = waiting_.front().socket;
            int count = 0;
            for (const Packet& packet : waiting_) {
                if (count == batch || packet.due > time || packet.socket != socket) break;
                parts[count] = {packet.data.get(), packet.bytes};
                messages[count].msg_hdr.msg_iov = &parts[count];
                messages[count].msg_hdr.msg_iovlen = 1;
                count++;
            }
            const int sent = sendmmsg(socket, messages, count, MSG_DONTWAIT);
            // The interface is down, or its queue full: the first packet is lost.
            const int gone = sent > 0 ? sent : 1;
            waiting_.erase(waiting_.begin(), waiting_.begin() + gone);
        }
    }

    const int64_t delay_;
    std::vector<pollfd> polled_;
    std::vector<int> targets_;
    std::vector<char> buffer_;
    iovec received_[batch];
    // All packets wait equally long, so that they leave in the order in which they came.
    std::deque<Packet> waiting_;
};

}  // namespace

// Relays until the process ends; returns errno if it cannot.
extern "C" __attribute__((visibility("default"))) int32_t taco_emulation_relay(
    const int32_t* near, const int32_t* far, int32_t num_pairs, int64_t delay_nanoseconds) {
    try {
        return Relay(near, far, num_pairs, delay_nanoseconds).serve();
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    }
}
