#include "daemon/http/request_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

constexpr char kRequests[] =
    "\r\nPOST /v1/first?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    "GET /v1/second HTTP/1.1\r\nHost: a\r\n\r\n"
    "POST /v1/third HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
    "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";

using Requests = std::vector<std::pair<std::string, std::string>>;  // path, body

// Parses these bytes, given in two parts.
Requests ReadAll(const std::string& first, const std::string& second, uint64_t limit, HttpProblem* problem) {
  RequestReader reader;
  Requests requests;
  for (const std::string& part : {first, second}) {
    reader.Append(part.data(), part.size());
    while (true) {
      bool fresh = false;
      const bool head = !reader.head_done();
      const RequestReader::Step step = head ? reader.ReadHead({}, &fresh) : reader.ReadBody();
      if (step == RequestReader::Step::kMore) {
        break;
      }
      if (step == RequestReader::Step::kRefused) {
        *problem = reader.problem();
        return requests;
      }
      if (head) {
        reader.AllowBody(limit);
      } else {
        requests.emplace_back(reader.head().request.path, reader.TakeBody());
        reader.End();
      }
    }
  }
  return requests;
}

int Refused(const std::string& text, uint64_t limit = 1000) {
  HttpProblem problem;
  const Requests requests = ReadAll(text, "", limit, &problem);
  EXPECT_TRUE(requests.empty());
  return problem.status;
}

TEST(RequestReaderTest, SplitOfTheBytesHasNoEffect) {
  const std::string text = kRequests;
  const Requests expected = {{"/v1/first", "hello"}, {"/v1/second", ""}, {"/v1/third", "abcde"}};
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    HttpProblem problem;
    EXPECT_EQ(ReadAll(text.substr(0, cut), text.substr(cut), 1000, &problem), expected) << "cut at " << cut;
  }
}

TEST(RequestReaderTest, NonRequestBytesAreRefusedEarly) {
  EXPECT_EQ(Refused("\x16\x03\x01"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\n"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\n" + std::string(40 << 10, 'a')), 431);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
}

TEST(RequestReaderTest, ABodyAboveItsLimitIsRefused) {
  EXPECT_EQ(Refused("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", 4),
            413);
}

TEST(RequestReaderTest, RequestWithoutBodyIsRecognised) {
  for (const auto& [fields, alone] :
       std::vector<std::pair<std::string, bool>>{{"", true},
                                                 {"Content-Length: 0\r\n", true},
                                                 {"Content-Length: 1\r\n", false},
                                                 {"Transfer-Encoding: chunked\r\n", false}}) {
    RequestReader reader;
    EXPECT_FALSE(reader.is_head_alone());
    const std::string text = "POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
    reader.Append(text.data(), text.size());
    bool fresh = false;
    ASSERT_EQ(reader.ReadHead({}, &fresh), RequestReader::Step::kDone) << reader.problem().message;
    EXPECT_TRUE(fresh);
    EXPECT_EQ(reader.is_head_alone(), alone) << fields;
  }
}

}  // namespace
}  // namespace sluice
