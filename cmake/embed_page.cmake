# Writes OUT: the files of the page in SOURCE as C++ text. Run by the build: cmake -DSOURCE= -DOUT= -P.
foreach(part page.html style.css ask.js chat.js live.js)
  file(READ ${SOURCE}/${part} text_${part})
  if(text_${part} MATCHES "\\)page\"")
    message(FATAL_ERROR "${part} holds )page\", which ends the C++ text that it becomes")
  endif()
endforeach()
# A compiler must accept 64 KiB of one string, not more: each file is one.
file(WRITE ${OUT} "// Made by cmake/embed_page.cmake.
#include \"inferd/http/page.h\"

namespace sluice::inferd {

PageText ReadPageText() {
  return {R\"page(${text_page.html})page\", R\"page(${text_style.css})page\",
          R\"page(${text_ask.js})page\" R\"page(${text_chat.js})page\" R\"page(${text_live.js})page\"};
}

}  // namespace sluice::inferd
")
