// One function to call for a kernel of any signature: it unpacks pointers to the arguments, and says what they must be.
#pragma once

template <class T> struct rooftile_kind { static constexpr const char* value = __is_enum(T) ? "i" : "s"; static constexpr int size = sizeof(T); };
#define ROOFTILE_KIND(type, letter) \
  template <> struct rooftile_kind<type> { static constexpr const char* value = letter; static constexpr int size = sizeof(type); };
ROOFTILE_KIND(float, "f") ROOFTILE_KIND(double, "f") ROOFTILE_KIND(bool, "b") ROOFTILE_KIND(char, "i") ROOFTILE_KIND(signed char, "i")
ROOFTILE_KIND(short, "i") ROOFTILE_KIND(int, "i") ROOFTILE_KIND(long, "i") ROOFTILE_KIND(long long, "i") ROOFTILE_KIND(unsigned char, "u")
ROOFTILE_KIND(unsigned short, "u") ROOFTILE_KIND(unsigned, "u") ROOFTILE_KIND(unsigned long, "u") ROOFTILE_KIND(unsigned long long, "u")
struct __half;
struct __nv_bfloat16;
template <> struct rooftile_kind<__half> { static constexpr const char* value = "h"; static constexpr int size = 2; };
template <> struct rooftile_kind<__nv_bfloat16> { static constexpr const char* value = "c"; static constexpr int size = 2; };
template <> struct rooftile_kind<void> { static constexpr const char* value = "v"; static constexpr int size = 1; };

template <class T> struct rooftile_bare { using type = T; };
template <class T> struct rooftile_bare<const T> { using type = T; };
template <class T> struct rooftile_bare<volatile T> { using type = T; };
template <class T> struct rooftile_bare<const volatile T> { using type = T; };

template <class T> struct rooftile_describe {
  static void to(char*& out) { out += __builtin_sprintf(out, "%s%d ", rooftile_kind<T>::value, rooftile_kind<T>::size); }
};
template <class T> struct rooftile_describe<T*> {
  static void to(char*& out) {
    *out++ = 'p';
    rooftile_describe<typename rooftile_bare<T>::type>::to(out);
  }
};

template <int... I> struct rooftile_indices {};
template <int N, int... I> struct rooftile_count : rooftile_count<N - 1, N - 1, I...> {};
template <int... I> struct rooftile_count<0, I...> { using type = rooftile_indices<I...>; };
template <class T> struct rooftile_value { using type = T; };
template <class T> struct rooftile_value<const T> { using type = T; };

template <class... P, int... I> inline __attribute__((always_inline)) void rooftile_apply(void (*kernel)(P...), void** a, rooftile_indices<I...>) {
  kernel(*(typename rooftile_value<P>::type*)a[I]...);
}
template <class... P> inline __attribute__((always_inline)) void rooftile_call(void (*kernel)(P...), void** a) {
  rooftile_apply(kernel, a, typename rooftile_count<sizeof...(P)>::type{});
}
template <class... P> inline const char* rooftile_signature(void (*)(P...)) {
  static char text[64 * (sizeof...(P) + 1)];
  char* out = text;
  (rooftile_describe<typename rooftile_bare<P>::type>::to(out), ...);
  *out = 0;
  return text;
}
// A __device__ or __constant__ variable that the host would fill: where it is, how large, and of what kind its elements are.
template <class T> struct rooftile_element { using type = typename rooftile_bare<T>::type; };
template <class T, size_t N> struct rooftile_element<T[N]> : rooftile_element<T> {};
#define ROOFTILE_SYMBOL(index, name)                                                              \
  extern "C" void* rooftile_symbol_##index(size_t* bytes, char* kind) {                           \
    rooftile_describe<typename rooftile_element<decltype(name)>::type>::to(kind);                 \
    *bytes = sizeof(name);                                                                        \
    return (void*)&name;                                                                          \
  }

#define ROOFTILE_UNWRAP(...) __VA_ARGS__
#define ROOFTILE_ENTRY(tag, kernel)                                                                              \
  extern "C" void rooftile_entry_##tag(void** a) { rooftile_call(&ROOFTILE_UNWRAP kernel, a); }                  \
  extern "C" const char* rooftile_parameters_##tag() { return rooftile_signature(&ROOFTILE_UNWRAP kernel); }
