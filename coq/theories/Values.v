(** * Values

    One universe of values: terms, operators, constants and tuples.  Constants come from an abstract
    domain with decidable equality; operations on values are pure partial functions; the proofs use
    nothing else of them.
    Decidable equality is identity, and compares what is bound; the equality that guards ask for is
    another partial operation of the domain, usually the same. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Kleene.

(** Operators and attribute names are drawn from countable sets.  An operator carries all that makes
    two nodes with equal children equal: its name and its non-tensor arguments. *)
Definition op := nat.
Definition attr := nat.

(** ** Sequencing partial results *)

(** Defined if every element is. *)
Fixpoint sequence {A : Type} (os : list (option A)) : option (list A) :=
  match os with
  | [] => Some []
  | Some a :: os => option_map (cons a) (sequence os)
  | None :: _ => None
  end.

Definition option_bind {A B : Type} (o : option A) (f : A -> option B) : option B :=
  match o with Some a => f a | None => None end.

(** [sequence (map f es)] inherits monotonicity from [f], element by element. *)
Lemma sequence_mono {E A} (f g : E -> option A) es :
  Forall (fun e => forall a, f e = Some a -> g e = Some a) es ->
  forall l, sequence (map f es) = Some l -> sequence (map g es) = Some l.
Proof.
  induction 1 as [| e es He _ IH]; simpl; intros l; auto.
  destruct (f e) as [a |]; [rewrite (He a eq_refl) | discriminate].
  destruct (sequence (map f es)) as [l' |]; [| discriminate].
  now rewrite (IH l' eq_refl).
Qed.

(** ** The domain of constants *)

(** What operations compute on: constants and tuples, without terms and operators. *)
Inductive data (C : Type) : Type :=
| DConst (c : C)
| DTuple (ds : list (data C)).
Arguments DConst {C} c.
Arguments DTuple {C} ds.

Class Domain : Type := {
  const : Type;                                (** numbers, strings, dtypes, ... *)
  const_eqb : const -> const -> bool;
  const_eqb_spec : forall c d, const_eqb c d = true <-> c = d;
  const_equal : const -> const -> option bool; (** [=] in guards: it may be unknown (symbolic sizes) *)
  data_less : data const -> data const -> option bool;  (** [<]: undefined where there is no order *)
  const_truth : const -> option bool;          (** undefined on constants that are no Booleans *)
  prim : Type                                  (** names of operations and predicates [π] *)
}.

(** ** Values over terms of type [T] *)

Section Values.
Context {Δ : Domain}.

Inductive value (T : Type) : Type :=
| VTerm (t : T)
| VOp (f : op)
| VConst (c : const)
| VTuple (vs : list (value T)).

End Values.
Arguments VTerm {Δ T} t.
Arguments VOp {Δ T} f.
Arguments VConst {Δ T} c.
Arguments VTuple {Δ T} vs.

Section ValueInd.
Context {Δ : Domain} {T : Type}.
Variable P : value T -> Prop.
Hypothesis HTerm : forall t, P (VTerm t).
Hypothesis HOp : forall f, P (VOp f).
Hypothesis HConst : forall c, P (VConst c).
Hypothesis HTuple : forall vs, Forall P vs -> P (VTuple vs).

(** Induction that reaches the components of tuples. *)
Fixpoint value_ind' (v : value T) : P v :=
  match v with
  | VTerm t => HTerm t
  | VOp f => HOp f
  | VConst c => HConst c
  | VTuple vs =>
      HTuple vs
        ((fix go vs : Forall P vs :=
            match vs with
            | [] => Forall_nil P
            | v :: vs => Forall_cons v (value_ind' v) (go vs)
            end) vs)
  end.
End ValueInd.

Section Conversions.
Context {Δ : Domain} {T : Type}.

(** Data are values. *)
Fixpoint embed (d : data const) : value T :=
  match d with
  | DConst c => VConst c
  | DTuple ds => VTuple (map embed ds)
  end.

(** A value that holds no term and no operator is data. *)
Fixpoint reify (v : value T) : option (data const) :=
  match v with
  | VTerm _ | VOp _ => None
  | VConst c => Some (DConst c)
  | VTuple vs => option_map DTuple (sequence (map reify vs))
  end.

(** An operation on data, as one on values: undefined outside of data. *)
Definition on_data (f : list (data const) -> option (data const)) (vs : list (value T))
    : option (value T) :=
  option_bind (sequence (map reify vs)) (fun ds => option_map embed (f ds)).

(** The Boolean that a value is, if it is one. *)
Definition truth (v : value T) : option bool :=
  match v with VConst c => const_truth c | _ => None end.

(** [v < w], where defined. *)
Definition value_less (v w : value T) : option bool :=
  option_bind (reify v) (fun d => option_bind (reify w) (data_less d)).

End Conversions.

(** ** Attributes and operations

    Pure partial functions on values, of which nothing is assumed. *)

Record interpretation {Δ : Domain} (T : Type) : Type := Interpretation {
  attribute_in : attr -> value T -> option (value T);         (** [⟦α⟧] *)
  operation_in : prim -> list (value T) -> option (value T)   (** [⟦π⟧] *)
}.
Arguments Interpretation {Δ T} attribute_in operation_in.
Arguments attribute_in {Δ T} i α v.
Arguments operation_in {Δ T} i π vs.

(** All attributes and operations undefined. *)
Definition no_meaning {Δ : Domain} {T : Type} : interpretation T :=
  Interpretation (fun _ _ => None) (fun _ _ => None).

(** ** Equality of values, given equality of terms *)

Section Equality.
Context {Δ : Domain} {T : Type}.
Variable teqb : T -> T -> bool.

Fixpoint value_eqb (v w : value T) : bool :=
  match v, w with
  | VTerm t, VTerm u => teqb t u
  | VOp f, VOp g => Nat.eqb f g
  | VConst c, VConst d => const_eqb c d
  | VTuple vs, VTuple ws =>
      (fix go vs ws :=
         match vs, ws with
         | [], [] => true
         | v :: vs, w :: ws => value_eqb v w && go vs ws
         | _, _ => false
         end) vs ws
  | _, _ => false
  end.

(** Equality in guards: on tuples, the conjunction over the components. *)
Fixpoint value_equal (v w : value T) : option bool :=
  match v, w with
  | VTerm t, VTerm u => Some (teqb t u)
  | VOp f, VOp g => Some (Nat.eqb f g)
  | VConst c, VConst d => const_equal c d
  | VTuple vs, VTuple ws =>
      (fix go vs ws :=
         match vs, ws with
         | [], [] => Some true
         | v :: vs, w :: ws => kleene_and (value_equal v w) (go vs ws)
         | _, _ => Some false
         end) vs ws
  | _, _ => Some false
  end.

Lemma value_equal_cons v vs w ws :
  value_equal (VTuple (v :: vs)) (VTuple (w :: ws)) =
  kleene_and (value_equal v w) (value_equal (VTuple vs) (VTuple ws)).
Proof. reflexivity. Qed.

Lemma value_eqb_cons v vs w ws :
  value_eqb (VTuple (v :: vs)) (VTuple (w :: ws)) =
  value_eqb v w && value_eqb (VTuple vs) (VTuple ws).
Proof. reflexivity. Qed.

Lemma value_eqb_spec (teqb_spec : forall t u, teqb t u = true <-> t = u) v :
  forall w, value_eqb v w = true <-> v = w.
Proof.
  induction v as [t | f | c | vs IH] using value_ind'; intros [u | g | d | ws];
    try (split; discriminate).
  - simpl. rewrite teqb_spec. split; congruence.
  - simpl. rewrite Nat.eqb_eq. split; congruence.
  - simpl. rewrite const_eqb_spec. split; congruence.
  - revert ws. induction IH as [| v vs Hv _ IHvs]; intros [| w ws];
      try (split; (reflexivity || discriminate)).
    rewrite value_eqb_cons, andb_true_iff, Hv, IHvs. split.
    + intros [-> E]. injection E as ->. reflexivity.
    + intros E. injection E as -> ->. split; reflexivity.
Qed.
End Equality.
