// Many HTTP requests to a unix socket, for little work of its own: the clients of overload.py.
//
//   flood SOCKET REQUESTS RATE CLIENTS SECONDS
//
// REQUESTS is a file of whole HTTP requests, each after a line with its size. With RATE above 0 that many are
// sent a second, in turn, whether or not others were answered; with CLIENTS above 0 so many ask one after the
// other. Their answers are awaited. Prints a line for each request: the index in
// REQUESTS, the microseconds from its start to the answer's head, to the first and to the last byte of its
// body, the microseconds from the program's start to the answer's end, and the answer in hexadecimal; "-" for
// one that was cut.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxOutstanding = 1000;
constexpr int kTickMs = 20;            // between two bursts at a rate
constexpr int kPatienceSeconds = 120;  // for an answer

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::vector<std::string> ReadRequests(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> requests;
  for (std::string line; std::getline(file, line);) {
    std::string request(std::strtoul(line.c_str(), nullptr, 10), '\0');
    file.read(request.data(), static_cast<std::streamsize>(request.size()));
    requests.push_back(std::move(request));
  }
  if (requests.empty()) Die(path);
  return requests;
}

struct Connection {
  int fd = -1;
  size_t request = 0;
  std::string in;
  size_t head = 0;  // bytes of the head; 0: it has not come
  Clock::time_point began, headed, first, last;
};

// True if the answer is whole: by its length, or by the last chunk. Nothing else is ever in flight here.
bool IsWhole(const Connection& connection) {
  const std::string_view in = connection.in;
  const std::string_view head = in.substr(0, connection.head);
  const size_t length = head.find("Content-Length: ");
  if (length != std::string_view::npos) {
    return in.size() >= connection.head + std::strtoul(in.data() + length + 16, nullptr, 10);
  }
  return in.ends_with("\r\n0\r\n\r\n");
}

class Flood {
 public:
  Flood(const char* socket, std::vector<std::string> requests)
      : path_(socket), requests_(std::move(requests)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  void Run(double rate, int clients, double seconds) {
    double due = 0;
    Clock::time_point ticked = start_;
    for (int i = 0; i < clients; ++i) Send();
    while (true) {
      const Clock::time_point now = Clock::now();
      const bool over = std::chrono::duration<double>(now - start_).count() >= seconds;
      if (over && outstanding_ == 0) return;
      if (over && now > last_event_ + std::chrono::seconds(kPatienceSeconds)) return CutAll();
      if (!over && now >= ticked + std::chrono::milliseconds(kTickMs)) {
        // A stop of the machine is made up for by a second at most.
        due = std::min(due + rate * std::chrono::duration<double>(now - ticked).count(), rate);
        ticked = now;
        for (; due >= 1; due -= 1) {
          if (outstanding_ < kMaxOutstanding) Send();
        }
      }
      epoll_event events[64];
      const int count = epoll_wait(epoll_, events, 64, kTickMs / 2);
      for (int i = 0; i < count; ++i) {
        auto* connection = static_cast<Connection*>(events[i].data.ptr);
        last_event_ = Clock::now();
        if (Read(connection) && clients > 0 && !over) Send();
      }
    }
  }

 private:
  void Connect(Connection* connection) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_, sizeof(address.sun_path) - 1);
    connection->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection->fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Die(path_);
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) != 0) Die(path_);
    epoll_event event{EPOLLIN, {.ptr = connection}};
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, connection->fd, &event) != 0) Die("epoll");
  }

  void Send() {
    if (idle_.empty()) {
      all_.push_back(std::make_unique<Connection>());
      Connect(all_.back().get());
      idle_.push_back(all_.back().get());
    }
    Connection* connection = idle_.back();
    idle_.pop_back();
    connection->request = next_++ % requests_.size();
    connection->in.clear();
    connection->head = 0;
    connection->began = last_event_ = Clock::now();
    ++outstanding_;
    const std::string& request = requests_[connection->request];
    // Requests are far smaller than a socket's buffer. One that the server has closed is found by Read().
    [[maybe_unused]] const ssize_t sent = send(connection->fd, request.data(), request.size(), MSG_NOSIGNAL);
  }

  // Returns true if the request has ended.
  bool Read(Connection* connection) {
    char buffer[65536];
    const ssize_t size = recv(connection->fd, buffer, sizeof(buffer), 0);
    if (size < 0 && errno == EAGAIN) return false;
    const bool asked = std::find(idle_.begin(), idle_.end(), connection) == idle_.end();
    if (size <= 0) {
      Reopen(connection);
      if (asked) End(connection, /*whole=*/false);
      return asked;
    }
    connection->last = Clock::now();
    connection->in.append(buffer, static_cast<size_t>(size));
    if (connection->head == 0) {
      const size_t end = connection->in.find("\r\n\r\n");
      if (end == std::string::npos) return false;
      connection->head = end + 4;
      connection->headed = connection->first = connection->last;
    } else if (connection->first == connection->headed) {
      connection->first = connection->last;
    }
    if (!IsWhole(*connection)) return false;
    if (connection->in.find("\r\nConnection: close\r\n") < connection->head) Reopen(connection);
    End(connection, /*whole=*/true);
    return true;
  }

  void Reopen(Connection* connection) {
    close(connection->fd);  // epoll forgets it
    Connect(connection);
  }

  void CutAll() {
    for (const auto& connection : all_) {
      if (std::find(idle_.begin(), idle_.end(), connection.get()) == idle_.end())
        End(connection.get(), false);
    }
  }

  void End(Connection* connection, bool whole) {
    const auto micros = [](Clock::time_point from, Clock::time_point to) {
      return static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(to - from).count());
    };
    std::printf("%zu %lld %lld %lld %lld ", connection->request,
                micros(connection->began, connection->headed), micros(connection->began, connection->first),
                micros(connection->began, connection->last), micros(start_, connection->last));
    if (whole) {
      std::string hex(2 * connection->in.size(), '0');
      for (size_t i = 0; i < connection->in.size(); ++i) {
        const auto byte = static_cast<unsigned char>(connection->in[i]);
        hex[2 * i] = "0123456789abcdef"[byte >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[byte & 15];
      }
      std::puts(hex.c_str());
    } else {
      std::puts("-");
    }
    --outstanding_;
    idle_.push_back(connection);
  }

  const char* const path_;
  const std::vector<std::string> requests_;
  const int epoll_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_event_ = start_;
  std::vector<std::unique_ptr<Connection>> all_;
  std::vector<Connection*> idle_;
  size_t next_ = 0;
  int outstanding_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: flood SOCKET REQUESTS RATE CLIENTS SECONDS\n", stderr);
    return 2;
  }
  Flood flood(argv[1], ReadRequests(argv[2]));
  flood.Run(std::atof(argv[3]), std::atoi(argv[4]), std::atof(argv[5]));
  return 0;
}
