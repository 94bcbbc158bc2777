(* Numbers as Coq has them: integers of any size, and floating-point numbers. *)

open Oracle

let integer_of_digits text =
  let digit z c = push_digit z (Char.code c - Char.code '0') in
  let magnitude text = String.fold_left digit Z0 text in
  if text.[0] = '-' then
    match magnitude (String.sub text 1 (String.length text - 1)) with
    | Zpos p -> Zneg p
    | z -> z
  else magnitude text

let digits_of_integer z =
  let rec digits z acc =
    match z with
    | Z0 -> acc
    | _ -> let rest, digit = pop_digit z in digits rest (string_of_int digit ^ acc)
  in
  match z with
  | Z0 -> "0"
  | Zpos _ -> digits z ""
  | Zneg p -> "-" ^ digits (Zpos p) ""

(* A finite number is m * 2^e with m odd: the same number has one form. *)
let real_of_float x =
  match classify_float x with
  | FP_nan -> NotANumber
  | FP_infinite -> Infinite (x < 0.)
  | FP_zero when Float.sign_bit x -> NegativeZero
  | _ ->
      let rec odd m e = if m <> 0 && m land 1 = 0 then odd (m / 2) (e + 1) else (m, e) in
      let fraction, exponent = Float.frexp x in
      let m, e = odd (int_of_float (Float.ldexp fraction 53)) (exponent - 53) in
      let integer n = integer_of_digits (string_of_int n) in
      Finite (integer m, integer (if m = 0 then 0 else e))

let float_of_real = function
  | NotANumber -> nan
  | Infinite negative -> if negative then neg_infinity else infinity
  | NegativeZero -> -0.
  | Finite (m, e) ->
      Float.ldexp (float_of_string (digits_of_integer m)) (int_of_string (digits_of_integer e))

(* As Python's repr: the fewest digits that are read back as the number. *)
let shown_float x =
  if Float.is_nan x then "nan"
  else if Float.is_integer x = false && Float.abs x = infinity then if x < 0. then "-inf" else "inf"
  else
    let shown n = Printf.sprintf "%.*e" n (Float.abs x) in
    let rec fewest n = if n = 16 || float_of_string (shown n) = Float.abs x then n else fewest (n + 1) in
    let text = shown (fewest 0) in
    let at = String.index text 'e' in
    let exponent = int_of_string (String.sub text (at + 1) (String.length text - at - 1)) in
    let digits = String.concat "" (String.split_on_char '.' (String.sub text 0 at)) in
    let length = String.length digits in
    let sign = if Float.sign_bit x then "-" else "" in
    let tail n = String.sub digits n (length - n) in
    sign
    ^
    if exponent < -4 || exponent >= 16 then
      Printf.sprintf "%c%s%se%c%02d" digits.[0]
        (if length > 1 then "." else "")
        (tail 1)
        (if exponent < 0 then '-' else '+')
        (abs exponent)
    else if exponent < 0 then "0." ^ String.make (-exponent - 1) '0' ^ digits
    else if exponent + 1 >= length then digits ^ String.make (exponent + 1 - length) '0' ^ ".0"
    else String.sub digits 0 (exponent + 1) ^ "." ^ tail (exponent + 1)
