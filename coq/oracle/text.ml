(* The text syntax of patterns and terms: pypm/core/parsing/grammar.lark, by recursive descent.

   Variables, operators and attributes are interned; what the oracle has no meaning for raises
   [Unsupported], what is no text of the grammar raises [Syntax]. *)

open Oracle
open Numbers

exception Syntax of string
exception Unsupported of string

(* --- interned names --------------------------------------------------------------------------- *)

module Text_map = Hashtbl.Make (struct
  type t = string

  let equal = String.equal

  let hash text =
    let h = ref 0 in
    for i = 0 to String.length text - 1 do
      h := (31 * !h) + Char.code (String.unsafe_get text i)
    done;
    !h
end)

module Table = struct
  type t = { ids : int Text_map.t; mutable names : string array; mutable size : int }

  let create reserved =
    let table = { ids = Text_map.create 64; names = Array.make 64 ""; size = 0 } in
    let add name =
      if table.size = Array.length table.names then
        table.names <- Array.append table.names (Array.make table.size "");
      table.names.(table.size) <- name;
      Text_map.add table.ids name table.size;
      table.size <- table.size + 1
    in
    List.iter add reserved;
    (table, add)

  let intern (table, add) name =
    match Text_map.find_opt table.ids name with
    | Some id -> id
    | None -> add name; table.size - 1

  let name (table, _) id = if id < table.size then table.names.(id) else ""
end

let variables = Table.create []
let operators = Table.create []
let attributes = Table.create [ "name"; "tags"; "value"; "dtype" ]  (* 0 to 3 in Oracle.v *)

let operator_name id = Table.name operators id

(* --- scanning ----------------------------------------------------------------------------------- *)

type scanner = { text : string; mutable at : int }

let[@inline] peek_at s i =
  if s.at + i < String.length s.text then String.unsafe_get s.text (s.at + i) else '\000'

let[@inline] is_digit c = c >= '0' && c <= '9'

let[@inline] is_letter c =
  (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c = '_' || Char.code c >= 128

let[@inline] is_word c = is_letter c || is_digit c

let rec skip_blanks s =
  match peek_at s 0 with
  | ' ' | '\t' | '\n' | '\r' | '\012' -> s.at <- s.at + 1; skip_blanks s
  | '#' when not (is_digit (peek_at s 1)) ->
      while s.at < String.length s.text && s.text.[s.at] <> '\n' do s.at <- s.at + 1 done;
      skip_blanks s
  | _ -> ()

let[@inline] skip s = if peek_at s 0 <= '#' then skip_blanks s
let[@inline] peek s = skip s; peek_at s 0

let fail s expected =
  raise (Syntax (Printf.sprintf "expected %s at character %d" expected (s.at + 1)))

(* Whether a symbol or a word comes next; a word ends where a name would, and has several letters. *)
let rec rest_follows s symbol i =
  if i = String.length symbol then
    not (is_letter symbol.[0] && (is_word (peek_at s i) || peek_at s i = '#'))
  else peek_at s i = String.unsafe_get symbol i && rest_follows s symbol (i + 1)

let[@inline] looking_at s symbol =
  peek s = symbol.[0] && (String.length symbol = 1 || rest_follows s symbol 1)

let[@inline] accept s symbol = looking_at s symbol && (s.at <- s.at + String.length symbol; true)
let expect s symbol = if not (accept s symbol) then fail s ("`" ^ symbol ^ "`")
let take s start = String.sub s.text start (s.at - start)

let at_name s = let c = peek s in is_letter c || c = '`'

let name s =
  match peek s with
  | '`' ->
      let b = Buffer.create 16 in
      s.at <- s.at + 1;
      while peek_at s 0 <> '`' do
        if s.at >= String.length s.text then fail s "a backquote";
        if peek_at s 0 = '\\' then s.at <- s.at + 1;
        Buffer.add_char b (peek_at s 0);
        s.at <- s.at + 1
      done;
      s.at <- s.at + 1;
      Buffer.contents b
  | c when is_letter c ->
      let start = s.at in
      while is_word (peek_at s 0) do s.at <- s.at + 1 done;
      if peek_at s 0 = '#' && is_digit (peek_at s 1) then begin
        s.at <- s.at + 1;
        while is_digit (peek_at s 0) do s.at <- s.at + 1 done
      end;
      take s start
  | _ -> fail s "a name"

let rec dotted_from s head =
  if peek s = '.' then (s.at <- s.at + 1; head ^ "." ^ dotted_from s (name s)) else head

let dotted s = dotted_from s (name s)

let separated s item close =
  if accept s close then []
  else
    let rec more () =
      let x = item s in
      if accept s "," then x :: more () else (expect s close; [ x ])
    in
    more ()

let variable s = Table.intern variables (name s)
let variables_in_parentheses s = expect s "("; separated s variable ")"

(* --- constants ---------------------------------------------------------------------------------- *)

let number s =
  let start = s.at in
  if peek_at s 0 = '-' then s.at <- s.at + 1;
  let word = List.find_opt (looking_at s) [ "inf"; "nan" ] in
  let digits () = while is_digit (peek_at s 0) do s.at <- s.at + 1 done in
  (match word with
   | Some word -> s.at <- s.at + String.length word
   | None ->
       digits ();
       if peek_at s 0 = '.' then (s.at <- s.at + 1; digits ());
       if s.at > start && Char.lowercase_ascii (peek_at s 0) = 'e' then begin
         s.at <- s.at + 1;
         if List.mem (peek_at s 0) [ '+'; '-' ] then s.at <- s.at + 1;
         digits ()
       end);
  let text = take s start in
  if word = None && (s.at = start || not (String.exists is_digit text)) then fail s "a number";
  if word = None && String.for_all (fun c -> is_digit c || c = '-') text then
    CInt (integer_of_digits text)
  else CFloat (real_of_float (float_of_string text))

let string_literal s =
  let quote = peek_at s 0 in
  let b = Buffer.create 16 in
  s.at <- s.at + 1;
  while peek_at s 0 <> quote do
    if s.at >= String.length s.text then fail s "a quote";
    (if peek_at s 0 = '\\' then begin
       s.at <- s.at + 1;
       match peek_at s 0 with
       | 'n' -> Buffer.add_char b '\n'
       | 't' -> Buffer.add_char b '\t'
       | 'r' -> Buffer.add_char b '\r'
       | ('\\' | '\'' | '"') as c -> Buffer.add_char b c
       | 'x' ->
           let code = int_of_string ("0x" ^ String.sub s.text (s.at + 1) 2) in
           if code >= 128 then raise (Unsupported "escapes beyond ASCII");
           Buffer.add_char b (Char.chr code);
           s.at <- s.at + 2
       | _ -> raise (Unsupported "escapes in strings")
     end
     else Buffer.add_char b (peek_at s 0));
    s.at <- s.at + 1
  done;
  s.at <- s.at + 1;
  CString (Buffer.contents b)

let starts_number s =
  let at = if peek s = '-' then 1 else 0 in
  is_digit (peek_at s at)
  || List.exists
       (fun word ->
         let next = peek_at s (at + 3) in
         s.at + at + 3 <= String.length s.text
         && String.sub s.text (s.at + at) 3 = word
         && not (is_word next || next = '#'))
       [ "inf"; "nan" ]

(* A constant, as data. *)
let rec data s =
  if starts_number s then DConst (number s)
  else if accept s "True" then DConst (CBool true)
  else if accept s "False" then DConst (CBool false)
  else if accept s "None" then DConst CNone
  else if accept s "@" then DConst (COpaque (dotted s))
  else if accept s "(" then tuple_rest s data
  else
    match peek s with
    | '\'' | '"' -> DConst (string_literal s)
    | '{' -> raise (Unsupported "sets")
    | '&' -> raise (Unsupported "operators as constants")
    | _ -> fail s "a constant"

(* After "(": (), (c,) or (c, d, ...) *)
and tuple_rest s item =
  if accept s ")" then DTuple []
  else
    let first = item s in
    expect s ",";
    DTuple (first :: separated s item ")")

let rec expr_of_data = function
  | DConst c -> constant_expr c
  | DTuple ds -> ETuple (List.map expr_of_data ds)

(* --- guards and expressions --------------------------------------------------------------------- *)

(* One grammar for both, as in the grammar; which of the two a form is shows when it is used. *)
type test = Guard of guard | Expr of expr

let guard_of = function Guard g -> g | Expr e -> GExpr e

let expr_of = function
  | Expr e -> e
  | Guard _ -> raise (Syntax "a guard stands where a value is expected")

let operation = function
  | "add" -> OAdd | "sub" -> OSub | "mul" -> OMul | "floordiv" -> OFloorDiv | "mod" -> OMod
  | "pow" -> OPow | "neg" -> ONeg | "abs" -> OAbs | "len" -> OLen | "item" -> OItem
  | "slice" -> OSlice | "in" -> OIn | "product" -> OProduct | "min" -> OMin | "max" -> OMax
  | "is_none" -> OIsNone | "is_value" -> OIsValue
  | name -> raise (Unsupported ("the function " ^ name))

let apply name es = Expr (apply_expr (operation name) (List.map expr_of es))

let rec test s =
  let rec more left =
    if accept s "or" then more (Guard (GOr (guard_of left, guard_of (conjunction s)))) else left
  in
  more (conjunction s)

and conjunction s =
  let rec more left =
    if accept s "and" then more (Guard (GAnd (guard_of left, guard_of (negation s)))) else left
  in
  more (negation s)

and negation s =
  if accept s "not" then Guard (GNot (guard_of (negation s))) else comparison s

and comparison s =
  let left = sum s in
  if accept s "==" then Guard (GEq (expr_of left, expr_of (sum s)))
  else if accept s "!=" then Guard (GNot (GEq (expr_of left, expr_of (sum s))))
  else if accept s "in" then apply "in" [ left; collection s ]
  else if looking_at s "<" && not (looking_at s "<=") then
    (expect s "<"; Guard (GLt (expr_of left, expr_of (sum s))))
  else left

(* What stands after `in`: here a set is the tuple of its elements. *)
and collection s =
  if accept s "{" then Expr (expr_of_data (DTuple (separated s data "}"))) else sum s

and sum s =
  let rec more left =
    if accept s "+" then more (apply "add" [ left; product s ])
    else if accept s "-" then more (apply "sub" [ left; product s ])
    else left
  in
  more (product s)

and product s =
  let rec more left =
    if looking_at s "**" then left
    else if accept s "*" then more (apply "mul" [ left; unary s ])
    else if accept s "//" then more (apply "floordiv" [ left; unary s ])
    else if accept s "/" then more (apply "div" [ left; unary s ])
    else if accept s "%" then more (apply "mod" [ left; unary s ])
    else left
  in
  more (unary s)

and unary s =
  if peek s = '-' && not (starts_number s) then (expect s "-"; apply "neg" [ unary s ]) else power s

and power s =
  let base = item s in
  if accept s "**" then apply "pow" [ base; unary s ] else base

and item s =
  let rec more e =
    if accept s "[" then begin
      let first = test s in
      if accept s ":" then begin
        let last = test s in
        expect s "]";
        more (apply "slice" [ e; first; last ])
      end
      else (expect s "]"; more (apply "item" [ e; first ]))
    end
    else if accept s "." then
      let attribute = Table.intern attributes (name s) in
      match expr_of e with
      | EVar x -> more (Expr (EAttr (x, attribute)))
      | e -> more (Expr (apply_expr (OSelect attribute) [ e ]))
    else e
  in
  more (primary s)

and primary s =
  match peek s with
  | _ when starts_number s -> Expr (expr_of_data (data s))
  | '[' -> expect s "["; Expr (ETuple (List.map expr_of (separated s test "]")))
  | '(' -> parenthesis s
  | c when is_letter c || c = '`' ->
      if accept s "true" then Guard GTrue
      else if looking_at s "True" || looking_at s "False" || looking_at s "None" then
        Expr (expr_of_data (data s))
      else
        let quoted = c = '`' in
        let head = name s in
        if head = "record" && not quoted then record s
        else if accept s "(" then apply head (separated s test ")")
        else Expr (EVar (Table.intern variables head))
  | _ -> Expr (expr_of_data (data s))

(* A record: its fields are sorted by name. *)
and record s =
  expect s "(";
  let field s =
    let x = name s in
    expect s "=";
    (x, expr_of (test s))
  in
  let fields = List.sort (fun (x, _) (y, _) -> compare x y) (separated s field ")") in
  let names, values = List.split fields in
  Expr (record_expr (List.map (Table.intern attributes) names) values)

(* A tuple of constants, or a test in parentheses: a comma after a constant, or nothing, tells. *)
and parenthesis s =
  let start = s.at in
  let as_tuple = try Some (data s) with Syntax _ | Unsupported _ -> s.at <- start; None in
  match as_tuple with
  | Some d -> Expr (expr_of_data d)
  | None ->
      expect s "(";
      let inner = test s in
      expect s ")";
      inner

(* --- patterns ----------------------------------------------------------------------------------- *)

let rec pattern s =
  if accept s "exists" then begin
    let rec bound () = if accept s "." then [] else let x = variable s in x :: bound () in
    let names = bound () in
    if names = [] then fail s "a name";
    let body = pattern s in
    List.fold_right (fun x p -> PEx (x, p)) names body
  end
  else
    let left = postfix s in
    if accept s "|" then PAlt (left, pattern s) else left

and postfix s =
  let rec more p =
    if accept s "where" then more (PGuard (p, guard_of (test s)))
    else if accept s "let" then begin
      let x = variable s in
      expect s "=";
      more (PLet (p, x, expr_of (test s)))
    end
    else if accept s "with" then begin
      let x = variable s in
      expect s "<=";
      more (PMatch (p, atom s, x))
    end
    else p
  in
  more (atom s)

and atom s =
  if accept s "(" then begin
    let p = pattern s in
    expect s ")";
    p
  end
  else if accept s "keep" then atom s
  else if accept s "$" then begin
    let x = variable s in
    expect s "(";
    PFun (x, separated s pattern ")")
  end
  else if accept s "^" then call s
  else if accept s "rec" then recursive s
  else
    let head = name s in
    let after = s.at in
    let full = dotted_from s head in
    if accept s "^" then call s
    else if accept s "(" then POp (Table.intern operators full, separated s pattern ")")
    else begin
      (* A variable is one name; a dot after it ends an enclosing `exists`. *)
      s.at <- after;
      PVar (Table.intern variables head)
    end

and call s =
  match number s with
  | CInt z ->
      let index = int_of_string (digits_of_integer z) in
      if index < 0 then fail s "a whole number";
      PCall (index, variables_in_parentheses s)
  | _ -> fail s "a whole number"

and recursive s =
  ignore (name s);
  expect s "(";
  let names () =
    let rec more () =
      if at_name s then
        let x = variable s in
        if accept s "," then x :: more () else [ x ]
      else []
    in
    more ()
  in
  let parameters = names () in
  let listed keyword =
    let start = s.at in
    if accept s ";" && accept s keyword then (expect s ":"; names ()) else (s.at <- start; [])
  in
  let inputs = listed "in" in
  let outputs = listed "out" in
  let small = listed "small" in
  expect s ")";
  expect s "{";
  let body = pattern s in
  expect s "}";
  PMu (parameters, inputs, outputs, small, body, variables_in_parentheses s)

(* --- terms -------------------------------------------------------------------------------------- *)

let rec term s =
  let f = Table.intern operators (dotted s) in
  let children = if accept s "(" then separated s term ")" else [] in
  let binding s =
    let a = Table.intern attributes (name s) in
    expect s "=";
    (a, data s)
  in
  let label = if accept s "{" then separated s binding "}" else [] in
  Tree (f, List.sort (fun (a, _) (b, _) -> compare a b) label, children)

let whole parse text =
  let s = { text; at = 0 } in
  let result = parse s in
  skip s;
  if s.at < String.length text then fail s "the end";
  result

(* --- printing ----------------------------------------------------------------------------------- *)

let keywords =
  [ "exists"; "where"; "let"; "with"; "keep"; "rec"; "in"; "out"; "small"; "and"; "or"; "not";
    "true"; "True"; "False"; "None"; "inf"; "nan"; "record"; "rule"; "rules"; "if"; "absorb"; "fingerprint" ]

let is_plain text =
  match name { text; at = 0 } with
  | exception Syntax _ -> false
  | read -> read = text && text.[0] <> '`'

let quoted text =
  let b = Buffer.create 16 in
  Buffer.add_char b '`';
  String.iter (fun c -> if c = '`' || c = '\\' then Buffer.add_char b '\\'; Buffer.add_char b c) text;
  Buffer.add_char b '`';
  Buffer.contents b

(* What the function has said before about a text is not worked out again. *)
let remembering f =
  let known = Text_map.create 64 in
  fun text ->
    match Text_map.find_opt known text with
    | Some result -> result
    | None -> let result = f text in Text_map.add known text result; result

let shown_name =
  remembering (fun text ->
      if is_plain text && not (List.mem text keywords) then text else quoted text)

let shown_member = remembering (fun text -> if is_plain text then text else quoted text)

let shown_dotted =
  remembering (fun text ->
      match String.split_on_char '.' text with
      | head :: parts when List.for_all is_plain (head :: parts) && not (List.mem head keywords) ->
          text
      | _ -> quoted text)

(* As Python's repr, for ASCII. *)
let shown_string text =
  let quote = if String.contains text '\'' && not (String.contains text '"') then '"' else '\'' in
  let b = Buffer.create 16 in
  Buffer.add_char b quote;
  String.iter
    (fun c ->
      match c with
      | '\n' -> Buffer.add_string b "\\n"
      | '\t' -> Buffer.add_string b "\\t"
      | '\r' -> Buffer.add_string b "\\r"
      | '\\' -> Buffer.add_string b "\\\\"
      | c when c = quote -> Buffer.add_char b '\\'; Buffer.add_char b c
      | c when c < ' ' || c = '\127' -> Buffer.add_string b (Printf.sprintf "\\x%02x" (Char.code c))
      | c -> Buffer.add_char b c)
    text;
  Buffer.add_char b quote;
  Buffer.contents b

let shown_constant = function
  | CInt z -> digits_of_integer z
  | CFloat r -> shown_float (float_of_real r)
  | CBool true -> "True"
  | CBool false -> "False"
  | CString text -> shown_string text
  | CNone -> "None"
  | COpaque text -> "@" ^ shown_dotted text
  | CFields _ -> raise (Unsupported "names of fields without a record")

(* The rest writes to a buffer. *)

let add_list b opening add items closing =
  Buffer.add_char b opening;
  List.iteri (fun i item -> if i > 0 then Buffer.add_string b ", "; add b item) items;
  Buffer.add_string b closing

let add_tuple b add items =
  add_list b '(' add items (match items with [ _ ] -> ",)" | _ -> ")")

let add_binding b name add value =
  Buffer.add_string b name;
  Buffer.add_char b '=';
  add b value

let rec add_data b = function
  | DConst c -> Buffer.add_string b (shown_constant c)
  | DTuple ds -> add_tuple b add_data ds

let rec add_term b (Tree (f, label, children)) =
  let add_attribute b (a, d) = add_binding b (shown_member (Table.name attributes a)) add_data d in
  Buffer.add_string b (shown_dotted (operator_name f));
  (match children with [] -> () | _ -> add_list b '(' add_term children ")");
  match label with [] -> () | _ -> add_list b '{' add_attribute label "}"

let rec add_value b v =
  match record_fields v with
  | Some (names, values) ->
      let add b (a, v) = add_binding b (shown_member (Table.name attributes a)) add_value v in
      Buffer.add_string b "record";
      add_list b '(' add (List.combine names values) ")"
  | None -> add_plain b v

and add_plain b = function
  | VTerm t -> add_term b t
  | VOp f -> Buffer.add_char b '&'; Buffer.add_string b (shown_dotted (operator_name f))
  | VConst c -> Buffer.add_string b (shown_constant (constant_of c))
  | VTuple vs -> add_tuple b add_value vs

let add_store b store =
  let add b (x, v) = add_binding b (shown_name (Table.name variables x)) add_value v in
  add_list b '{' add (oracle_bindings store) "}"

(* What a function writes, as text. *)
let shown add =
  let b = Buffer.create 256 in
  fun x ->
    Buffer.clear b;
    add b x;
    Buffer.contents b

let shown_term = shown add_term
let shown_value = shown add_value
let shown_store = shown add_store
