#include "inferd/http/page.h"

#include <openssl/sha.h>

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice::inferd {
namespace {

// Content-Security-Policy source of an inline script or style: its digest, so that no other script runs.
std::string DigestSource(std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof(digest));
  return absl::StrCat("'sha256-", absl::Base64Escape(bytes), "'");
}

void Replace(std::string_view mark, std::string_view text, std::string* page) {
  if (const size_t at = page->find(mark); at != std::string::npos) {
    page->replace(at, mark.size(), text);
  }
}

HttpResponse MakePage() {
  const PageText text = ReadPageText();
  HttpResponse answer;
  answer.content_type = "text/html; charset=utf-8";
  answer.body = std::string(text.html);
  Replace("@STYLE@", text.style, &answer.body);
  Replace("@SCRIPT@", text.script, &answer.body);
  answer.headers = {{"Content-Security-Policy",
                     absl::StrCat("default-src 'none'; script-src ", DigestSource(text.script),
                                  "; style-src ", DigestSource(text.style),
                                  "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                                  "frame-ancestors 'none'")},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cache-Control", "no-cache"}};
  return answer;
}

}  // namespace

HttpResponse PageAnswer() {
  static const HttpResponse& page = *new HttpResponse(MakePage());
  return page;
}

}  // namespace sluice::inferd
