#include "jpeg.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

namespace images {

namespace {

constexpr double kMostPixels = 178'956'970;

/// libjpeg says errors by a call that must not return: this one jumps to where the library was entered.
struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf entered;
  char text[JMSG_LENGTH_MAX];

  ErrorManager() {
    jpeg_std_error(this);
    error_exit = [](j_common_ptr image) {
      auto& errors = *static_cast<ErrorManager*>(image->err);
      errors.format_message(image, errors.text);
      std::longjmp(errors.entered, 1);
    };
    // Warnings are of damage that decoders bridge, but for a file that ends early.
    emit_message = [](j_common_ptr image, int level) {
      if (level < 0 && image->err->msg_code == JWRN_JPEG_EOF) {
        auto& errors = *static_cast<ErrorManager*>(image->err);
        std::snprintf(errors.text, sizeof(errors.text), "the file is truncated");
        std::longjmp(errors.entered, 1);
      }
    };
  }
};

/// Runs what calls libjpeg. Nothing in `body` may have a destructor: an error jumps over it.
template <class Body>
void entering(ErrorManager& errors, const Body& body) {
  if (setjmp(errors.entered) != 0) throw ImageError(errors.text);
  body();
}

/// Adobe's inverted CMYK to RGB, with PIL's rounding.
void convert_cmyk(const std::uint8_t* cmyk, int pixels, std::uint8_t* rgb) {
  for (int i = 0; i < pixels; ++i) {
    const unsigned white = cmyk[4 * i + 3];
    for (int channel = 0; channel < 3; ++channel) {
      const unsigned product = (255U - cmyk[4 * i + channel]) * white + 128U;
      rgb[3 * i + channel] = static_cast<std::uint8_t>(white - (((product >> 8U) + product) >> 8U));
    }
  }
}

}  // namespace

struct Jpeg::State {
  ErrorManager errors;
  jpeg_decompress_struct image{};
};

Jpeg::Jpeg(std::span<const std::byte> file) : state_(std::make_unique<State>()) {
  if (file.empty()) throw ImageError("the file is empty");
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
  if (file.size() < 2 || bytes[0] != 0xFF || bytes[1] != 0xD8) throw ImageError("the file is no JPEG");
  auto& image = state_->image;
  image.err = &state_->errors;
  try {
    entering(state_->errors, [&] {
      jpeg_create_decompress(&image);
      jpeg_mem_src(&image, bytes, file.size());
      jpeg_read_header(&image, TRUE);
    });
    if (double{1} * image.image_width * image.image_height > kMostPixels) {
      throw ImageError(std::to_string(image.image_width) + " x " + std::to_string(image.image_height) +
                       " pixels are more than 178956970");
    }
  } catch (...) {
    jpeg_destroy_decompress(&image);
    throw;
  }
}

Jpeg::~Jpeg() { jpeg_destroy_decompress(&state_->image); }

Size Jpeg::size() const {
  return {static_cast<int>(state_->image.image_width), static_cast<int>(state_->image.image_height)};
}

Size Jpeg::size_shrunk_by(int shrink) const {
  const auto all = size();
  return {(all.width + shrink - 1) / shrink, (all.height + shrink - 1) / shrink};
}

void Jpeg::decode(Region region, int shrink, Pixels& out) {
  auto& image = state_->image;
  const bool is_cmyk = image.jpeg_color_space == JCS_CMYK || image.jpeg_color_space == JCS_YCCK;
  image.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  image.scale_num = 1;
  image.scale_denom = static_cast<unsigned>(shrink);
  // Colours are interpolated between neighbours, so a column more on each side keeps the region's own exact.
  const auto all = size_shrunk_by(shrink);
  auto x = static_cast<JDIMENSION>(std::max(0, region.x - 2));
  auto width = static_cast<JDIMENSION>(std::min(all.width, region.x + region.width + 2)) - x;
  entering(state_->errors, [&] {
    jpeg_start_decompress(&image);
    if (width < image.output_width) jpeg_crop_scanline(&image, &x, &width);
  });
  out.region = {static_cast<int>(x), region.y, static_cast<int>(width), region.height};
  const auto row_bytes = static_cast<std::size_t>(3 * width);
  out.bytes.resize(row_bytes * static_cast<std::size_t>(region.height));
  std::vector<std::uint8_t> cmyk(is_cmyk ? static_cast<std::size_t>(4 * width) : 0);
  auto* const rgb_rows = out.bytes.data();
  auto* const cmyk_row = cmyk.data();
  entering(state_->errors, [&] {
    if (region.y > 0) jpeg_skip_scanlines(&image, static_cast<JDIMENSION>(region.y));
    for (int y = 0; y < region.height; ++y) {
      auto* const rgb = rgb_rows + row_bytes * static_cast<std::size_t>(y);
      JSAMPROW row = is_cmyk ? cmyk_row : rgb;
      jpeg_read_scanlines(&image, &row, 1);
      if (is_cmyk) convert_cmyk(cmyk_row, static_cast<int>(width), rgb);
    }
    jpeg_abort_decompress(&image);  // what is below the region is of no use
  });
}

std::vector<std::byte> encode_jpeg(const std::uint8_t* bytes, Size size, int channels, int quality) {
  ErrorManager errors;
  jpeg_compress_struct image{};
  image.err = &errors;
  unsigned char* file = nullptr;
  unsigned long file_size = 0;
  entering(errors, [&] {
    jpeg_create_compress(&image);
    jpeg_mem_dest(&image, &file, &file_size);
    image.image_width = static_cast<JDIMENSION>(size.width);
    image.image_height = static_cast<JDIMENSION>(size.height);
    image.input_components = channels;
    image.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&image);
    jpeg_set_quality(&image, quality, TRUE);
    jpeg_start_compress(&image, TRUE);
    while (image.next_scanline < image.image_height) {
      auto* row = const_cast<JSAMPLE*>(bytes + std::size_t{image.next_scanline} *
                                                   static_cast<std::size_t>(size.width * channels));
      jpeg_write_scanlines(&image, &row, 1);
    }
    jpeg_finish_compress(&image);
  });
  jpeg_destroy_compress(&image);
  const auto* begin = reinterpret_cast<const std::byte*>(file);
  std::vector<std::byte> written(begin, begin + file_size);
  std::free(file);
  return written;
}

}  // namespace images
