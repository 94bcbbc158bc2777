(** * The oracle: the matcher, extracted

    An instance of the calculus that can be printed and read: constants are integers, floating-point
    numbers, truth values, strings, "none" and opaque names; terms are trees whose nodes carry attributes.  The functions
    extracted are those that the theorems are about; nothing is re-implemented here. *)

From Coq Require Import List Bool ZArith String Ascii.
Import ListNotations.
From PyPM Require Import Names Kleene Values Terms Guards Patterns Declarative Stores Machine
  WellFormed Guarded Enumeration Termination Decision Inference BigStep Compile Items Sharing Records.

(** ** Constants *)

(** A floating-point number: [m * 2^e] with [m] odd, or zero with [e] zero, so that each has one form. *)
Inductive real : Type :=
| Finite (m e : Z)
| NegativeZero
| Infinite (negative : bool)
| NotANumber.

Inductive constant : Type :=
| CInt (z : Z)
| CFloat (r : real)
| CBool (b : bool)
| CString (s : string)
| CNone
| COpaque (s : string)    (** a dtype, a device, ...: known by name alone *)
| CFields (αs : list attr).   (** the names of the fields of a record, which begins with them *)

Definition real_eqb (r s : real) : bool :=
  match r, s with
  | Finite m e, Finite n f => Z.eqb m n && Z.eqb e f
  | NegativeZero, NegativeZero | NotANumber, NotANumber => true
  | Infinite a, Infinite b => Bool.eqb a b
  | _, _ => false
  end.

Lemma real_eqb_spec r s : real_eqb r s = true <-> r = s.
Proof.
  destruct r, s; simpl; rewrite ?andb_true_iff, ?Z.eqb_eq, ?Bool.eqb_true_iff; try (split; congruence).
  split; [intros [-> ->]; reflexivity | intros [= -> ->]; auto].
Qed.

(** Identity: what is bound is compared by it.  [1], [1.0] and [True] are three, [NaN] is itself. *)
Definition constant_eqb (c d : constant) : bool :=
  match c, d with
  | CInt m, CInt n => Z.eqb m n
  | CFloat r, CFloat s => real_eqb r s
  | CBool a, CBool b => Bool.eqb a b
  | CString s, CString t => String.eqb s t
  | CNone, CNone => true
  | COpaque s, COpaque t => String.eqb s t
  | CFields αs, CFields βs => if list_eq_dec Nat.eq_dec αs βs then true else false
  | _, _ => false
  end.

Lemma constant_eqb_spec c d : constant_eqb c d = true <-> c = d.
Proof.
  destruct c, d; simpl; rewrite ?Z.eqb_eq, ?real_eqb_spec, ?Bool.eqb_true_iff, ?String.eqb_eq;
    try (split; congruence).
  destruct (list_eq_dec Nat.eq_dec αs αs0); split; congruence.
Qed.

(** Numbers by size; [NaN] is in no order. *)
Definition compare_reals (r s : real) : option comparison :=
  let finite r := match r with NegativeZero => Finite 0 0 | r => r end in
  match finite r, finite s with
  | NotANumber, _ | _, NotANumber => None
  | Infinite a, Infinite b => Some (if Bool.eqb a b then Eq else if a then Lt else Gt)
  | Infinite a, _ => Some (if a then Lt else Gt)
  | _, Infinite b => Some (if b then Gt else Lt)
  | Finite m e, Finite n f =>
      let least := Z.min e f in
      Some (Z.compare (m * 2 ^ (e - least)) (n * 2 ^ (f - least)))
  | _, _ => None
  end.

Definition real_of (c : constant) : option real :=
  match c with
  | CInt z => Some (Finite z 0)
  | CBool b => Some (Finite (if b then 1 else 0) 0)
  | CFloat r => Some r
  | _ => None
  end.

Definition same_size (r s : real) : bool :=
  match compare_reals r s with Some Eq => true | _ => false end.

(** The equality that guards ask for: of numbers by size, so that [1 = 1.0], and [NaN] is equal to
    nothing; a truth value is no number. *)
Definition constant_equal (c d : constant) : bool :=
  match c, d with
  | CBool _, _ | _, CBool _ => constant_eqb c d
  | _, _ =>
      match real_of c, real_of d with
      | Some r, Some s => same_size r s
      | _, _ => constant_eqb c d
      end
  end.

(** As a whole number; truth values count. *)
Definition number (d : data constant) : option Z :=
  match d with
  | DConst (CInt z) => Some z
  | DConst (CBool b) => Some (if b then 1 else 0)%Z
  | _ => None
  end.

Fixpoint string_ltb (s t : string) : bool :=
  match s, t with
  | EmptyString, String _ _ => true
  | String a s, String b t =>
      (nat_of_ascii a <? nat_of_ascii b)%nat || (Ascii.eqb a b && string_ltb s t)
  | _, EmptyString => false
  end.

(** Equal in the order of numbers, in which [True] is [1]. *)
Fixpoint order_eqb (d e : data constant) : bool :=
  match d, e with
  | DConst c, DConst c' =>
      match real_of c, real_of c' with
      | Some r, Some s => same_size r s
      | _, _ => constant_eqb c c'
      end
  | DTuple ds, DTuple es =>
      (fix go ds es :=
         match ds, es with
         | [], [] => true
         | d :: ds, e :: es => order_eqb d e && go ds es
         | _, _ => false
         end) ds es
  | _, _ => false
  end.

(** Without [NaN] and records inside. *)
Fixpoint in_order (d : data constant) : bool :=
  match d with
  | DConst (CFloat NotANumber) | DConst (CFields _) => false
  | DConst _ => true
  | DTuple ds => forallb in_order ds
  end.

(** Numbers by size, strings and tuples by their first difference; tuples with [NaN], and records, in
    no order. *)
Fixpoint less (d e : data constant) : option bool :=
  match d, e with
  | DTuple ds, DTuple es =>
      if negb (forallb in_order ds && forallb in_order es) then None else
      (fix go ds es :=
         match ds, es with
         | _, [] => Some false
         | [], _ :: _ => Some true
         | d :: ds, e :: es => if order_eqb d e then go ds es else less d e
         end) ds es
  | DConst (CString s), DConst (CString t) => Some (string_ltb s t)
  | DConst c, DConst c' =>
      option_bind (real_of c) (fun r =>
        option_map (fun s => match compare_reals r s with Some Lt => true | _ => false end)
          (real_of c'))
  | _, _ => None
  end.

(** ** Operations on constants and tuples of them *)

Inductive operation_name : Type :=
| OAdd | OSub | OMul | OFloorDiv | OMod | OPow | ONeg | OAbs
| OLen | OItem | OSlice | OIn | OProduct | OMin | OMax | OIsNone | OIsValue
| OSelect (α : attr).   (** [e.α], where [e] is no variable *)

Definition int (z : Z) : data constant := DConst (CInt z).

Definition arithmetic (f : Z -> Z -> option Z) (d e : data constant) : option (data constant) :=
  option_bind (number d) (fun m => option_bind (number e) (fun n => option_map int (f m n))).

Definition extreme (better : data constant -> data constant -> option bool)
    (ds : list (data constant)) : option (data constant) :=
  match ds with
  | [] => None
  | d :: ds =>
      fold_left
        (fun best d =>
           option_bind best (fun b => option_map (fun c : bool => if c then d else b) (better d b)))
        ds (Some d)
  end.

Definition data_operation (o : operation_name) (ds : list (data constant))
    : option (data constant) :=
  match o, ds with
  | OAdd, [DConst (CString s); DConst (CString t)] => Some (DConst (CString (s ++ t)))
  | OAdd, [d; e] => arithmetic (fun m n => Some (m + n)%Z) d e
  | OSub, [d; e] => arithmetic (fun m n => Some (m - n)%Z) d e
  | OMul, [d; e] => arithmetic (fun m n => Some (m * n)%Z) d e
  | OFloorDiv, [d; e] =>
      arithmetic (fun m n => if Z.eqb n 0 then None else Some (m / n)%Z) d e
  | OMod, [d; e] => arithmetic (fun m n => if Z.eqb n 0 then None else Some (m mod n)%Z) d e
  | OPow, [d; e] => arithmetic (fun m n => if Z.ltb n 0 then None else Some (m ^ n)%Z) d e
  | ONeg, [d] => option_map (fun z => int (- z)) (number d)
  | OAbs, [d] => option_map (fun z => int (Z.abs z)) (number d)
  | OLen, [DConst (CString s)] => Some (int (Z.of_nat (String.length s)))
  | OProduct, [DTuple ds] =>
      option_map (fun zs => int (fold_left Z.mul zs 1%Z)) (sequence (map number ds))
  | OMin, [DTuple ds] => extreme less ds
  | OMax, [DTuple ds] => extreme (fun d e => less e d) ds
  | OMin, _ :: _ :: _ => extreme less ds
  | OMax, _ :: _ :: _ => extreme (fun d e => less e d) ds
  | _, _ => None
  end.

Definition constants : Domain := {|
  const := constant;
  const_eqb := constant_eqb;
  const_eqb_spec := constant_eqb_spec;
  const_equal c d := Some (constant_equal c d);
  data_less := less;
  const_truth c := match c with CBool b => Some b | _ => None end;
  prim := operation_name
|}.
#[local] Existing Instance constants.

#[local] Instance constant_fields : Fields constants := {|
  tag := CFields : list attr -> const;
  untag c := match c with CFields αs => Some αs | _ => None end;
  untag_tag αs := eq_refl
|}.

(** ** The guards that the index reads: of an operator's class, and of a dtype *)

Fixpoint is_constant (e : expr) : bool :=
  match e with
  | EConst _ => true
  | ETuple es => forallb is_constant es
  | _ => false
  end.

(** The attribute [1] is [tags], [3] is [dtype]. *)
Definition index_reads (g : guard) : bool :=
  match g with
  | GExpr (EPrim o [EConst c; EAttr _ 1]) =>
      match (o : operation_name), (c : constant) with OIn, CString _ => true | _, _ => false end
  | GEq (EAttr _ 3) e | GEq e (EAttr _ 3) => is_constant e
  | _ => false
  end.

(** ** Terms with attributes *)

Definition label : Type := list (attr * data constant).

Inductive tree : Type := Tree (f : op) (a : label) (ts : list tree).

Definition tree_dest (t : tree) : op * list tree := match t with Tree f _ ts => (f, ts) end.

Fixpoint tree_size (t : tree) : nat :=
  match t with Tree _ _ ts => 1 + list_sum (map tree_size ts) end.

Lemma tree_size_child t f ts u : tree_dest t = (f, ts) -> In u ts -> tree_size u < tree_size t.
Proof.
  destruct t as [g a us]. simpl. intros [= -> ->] I. apply Nat.lt_succ_r.
  induction ts as [| t ts IH]; [destruct I |]. simpl. destruct I as [-> | I].
  - apply Nat.le_add_r.
  - eapply Nat.le_trans; [now apply IH | apply Nat.le_add_l].
Qed.

(** Equality of constants, of attributes, and of trees is decidable. *)
Lemma data_eq_dec : forall d e : data constant, {d = e} + {d <> e}.
Proof.
  fix IH 1. intros [c | ds] [c' | es]; try (right; discriminate).
  - destruct (constant_eqb c c') eqn:E; [left | right].
    + f_equal. now apply constant_eqb_spec.
    + intros [= H]. apply constant_eqb_spec in H. congruence.
  - destruct (list_eq_dec IH ds es) as [-> | N]; [left; reflexivity | right; congruence].
Defined.

Lemma label_eq_dec : forall a b : label, {a = b} + {a <> b}.
Proof.
  apply list_eq_dec. intros [α d] [β e].
  destruct (Nat.eq_dec α β) as [-> | N]; [| right; congruence].
  destruct (data_eq_dec d e) as [-> | N]; [left; reflexivity | right; congruence].
Defined.

Lemma tree_eq_dec : forall t u : tree, {t = u} + {t <> u}.
Proof.
  fix IH 1. intros [f a ts] [g b us].
  destruct (Nat.eq_dec f g) as [-> | N]; [| right; congruence].
  destruct (label_eq_dec a b) as [-> | N]; [| right; congruence].
  destruct (list_eq_dec IH ts us) as [-> | N]; [left; reflexivity | right; congruence].
Defined.

Definition tree_eqb (t u : tree) : bool := if tree_eq_dec t u then true else false.

Lemma tree_eqb_spec t u : tree_eqb t u = true <-> t = u.
Proof. unfold tree_eqb. destruct (tree_eq_dec t u); split; congruence. Qed.

(** ** Attributes, and operations on all values

    Attributes of a term are those it carries; the attribute [0] of an operator is its name, and the
    attribute [1] its tags, of which it has none.  The attribute [2] is the value of a literal. *)

Definition attribute_value (op_name : op -> string) (α : attr) (v : value tree)
    : option (value tree) :=
  match v with
  | VTerm (Tree _ a _) =>
      option_map (fun b => embed (snd b)) (find (fun b => Nat.eqb α (fst b)) a)
  | VOp f =>
      match α with
      | 0 => Some (VConst (CString (op_name f) : const))
      | 1 => Some (VTuple [])
      | _ => None
      end
  | _ => None
  end.

(** With the fields of records, as [Records.v] has them. *)
Definition with_records (op_name : op -> string) (operations : operation_name -> list (value tree) ->
    option (value tree)) : interpretation tree :=
  with_fields (Interpretation (attribute_value op_name) operations).

(** The items of a tuple; a record has none. *)
Definition items (v : value tree) : option (list (value tree)) :=
  match fields v, v with
  | None, VTuple vs => Some vs
  | _, _ => None
  end.

Definition int_of (v : value tree) : option Z := option_bind (reify v) number.
Definition int_value (z : Z) : value tree := VConst (CInt z : const).
Definition truth_value (b : bool) : value tree := VConst (CBool b : const).

(** The position that an index means: from the end where it is negative. *)
Definition position (length index : Z) : Z := if Z.ltb index 0 then index + length else index.

Definition item (vs : list (value tree)) (i : Z) : option (value tree) :=
  let p := position (Z.of_nat (List.length vs)) i in
  if Z.ltb p 0 then None else nth_error vs (Z.to_nat p).

(** Either bound of a slice may be left out. *)
Definition bound (default : Z) (v : value tree) : option Z :=
  match v with VConst CNone => Some default | v => int_of v end.

Definition slice (vs : list (value tree)) (from to : value tree) : option (value tree) :=
  let length := Z.of_nat (List.length vs) in
  let clip z := Z.to_nat (Z.max 0 (Z.min length (position length z))) in
  option_bind (bound 0 from) (fun i =>
    option_map (fun j => VTuple (skipn (clip i) (firstn (clip j) vs))) (bound length to)).

Definition literal (v : value tree) : option (value tree) :=
  match v with
  | VTerm (Tree _ a _) =>
      option_map (fun b => embed (snd b)) (find (fun b => Nat.eqb 2 (fst b)) a)
  | v => Some v
  end.

Definition same (v w : value tree) : bool :=
  match value_equal tree_eqb v w with Some b => b | None => false end.

Definition apply_operation (op_name : op -> string) (o : operation_name) (vs : list (value tree))
    : option (value tree) :=
  match o, vs with
  | OSelect α, [v] => attribute_in (with_records op_name (fun _ _ => None)) α v
  | OAdd, [v; w] =>
      match items v, items w with
      | Some vs, Some ws => Some (VTuple (app vs ws))
      | _, _ => on_data (data_operation o) [v; w]
      end
  | OLen, [v] =>
      match items v with
      | Some vs => Some (int_value (Z.of_nat (List.length vs)))
      | None => on_data (data_operation o) [v]
      end
  | OItem, [v; i] => option_bind (items v) (fun vs => option_bind (int_of i) (item vs))
  | OSlice, [v; i; j] => option_bind (items v) (fun vs => slice vs i j)
  | OIn, [v; w] => option_map (fun vs => truth_value (existsb (same v) vs)) (items w)
  | OIsNone, [v] =>
      Some (truth_value
              match literal v with Some v => same v (VConst (CNone : const)) | None => false end)
  | OIsValue, [_; VConst (CFloat _)] => None   (* numbers that are close, which is not modelled *)
  | OIsValue, [v; w] =>
      Some (truth_value match literal v with Some v => same v w | None => false end)
  | o, vs => on_data (data_operation o) vs
  end.

Section Oracle.
Variable op_name : op -> string.

#[local] Instance tree_structure : Structure tree := {|
  teqb := tree_eqb;
  teqb_spec := tree_eqb_spec;
  dest := tree_dest;
  meaning := with_records op_name (apply_operation op_name)
|}.

(** Fields are read by name: what [Records.v] proves is about this structure. *)
Example field_of_let (θ : env tree) R p x αs es t i α e :
  NoDup αs -> matches R (PLet p x (record αs es)) θ t ->
  nth_error αs i = Some α -> nth_error es i = Some e -> eval θ (EAttr x α) = eval θ e.
Proof. exact (record_field _ eq_refl θ R p x αs es t i α e). Qed.

(** Where [e] is no variable, [e.α] is the attribute that a variable with its value has. *)
Example select_is_attribute (θ : env tree) x e α :
  θ x = eval θ e -> eval θ (EPrim (OSelect α : prim) [e]) = eval θ (EAttr x α).
Proof. intros E. simpl. rewrite E. destruct (eval θ e); reflexivity. Qed.

#[local] Instance tree_sized : Sized tree := {| size := tree_size; size_child := tree_size_child |}.

(** ** What the driver calls *)

(** All answers, and the first, by the total procedure; [None] if the pattern is not guarded. *)
Definition oracle_all (p : pattern) (t : tree) : option (list (store tree)) :=
  match bool_dec (guarded p) true with
  | left G => Some (match_all p t G)
  | right _ => None
  end.

Definition oracle_first (p : pattern) (t : tree) : option (option (store tree)) :=
  match bool_dec (guarded p) true with
  | left G => Some (match_fn p t G)
  | right _ => None
  end.

(** All answers within a number of steps, by the machine and by the compiled code. *)
Definition oracle_run (fuel : nat) (p : pattern) (t : tree) : option (list (store tree)) :=
  run fuel (init p t).

Definition oracle_vm (fuel : nat) (p : pattern) (t : tree) : option (list (store tree)) :=
  vm_run fuel (vm_init p t).

(** All answers by the big-step semantics, within a depth. *)
Definition oracle_big (fuel : nat) (p : pattern) (t : tree) : option (list (store tree)) :=
  enumerate fuel [] ρ0 p t empty.

(** Whether a term satisfies the item of a pattern, within a depth. *)
Definition oracle_admits (fuel : nat) (p : pattern) (t : tree) : option bool :=
  satisfies_within index_reads (fun _ _ => true) fuel t
    (item_of index_reads (fun _ _ => true) [] [] p).

(** One step of the machine, and where a run begins. *)
Definition oracle_init (p : pattern) (t : tree) : state tree := init p t.
Definition oracle_step (st : state tree) : state tree := step st.
End Oracle.

(** The names that every match binds at or below its subject, and the operators that it visits. *)
Definition oracle_below (p : pattern) : list name := bound_below [] [] p.
Definition oracle_extent (p : pattern) : option (list op) := extent_of p.

Definition oracle_wf (p : pattern) : bool := wf p.
Definition oracle_guarded (p : pattern) : bool := guarded p.
Definition oracle_infer (p : pattern) : pattern := infer p.

(** What an answer binds: free names in the order in which they were bound. *)
Definition oracle_bindings (σ : store tree) : list (name * value tree) :=
  flat_map (fun b => match fst b with LFree x => [(x, snd b)] | LFresh _ => [] end) (rev (cells σ)).

(** Constants and operations, at their own types. *)
Definition constant_expr (c : constant) : expr := EConst (c : const).
Definition apply_expr (o : operation_name) (es : list expr) : expr := EPrim (o : prim) es.
Definition constant_of (c : const) : constant := c.
Definition record_expr (αs : list attr) (es : list expr) : expr := record αs es.
Definition record_fields (v : value tree) : option (list attr * list (value tree)) := fields v.

(** Decimal digits, read without overflow. *)
Definition push_digit (z : Z) (digit : nat) : Z := (10 * z + Z.of_nat digit)%Z.
Definition pop_digit (z : Z) : Z * nat := (Z.div z 10, Z.to_nat (Z.modulo z 10)).
