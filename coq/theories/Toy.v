(** * A small instance, for examples

    Constants are natural numbers with addition; the attribute [0] of a tree is its operator, [1] its
    number of children, and the only attribute of a constant is the constant. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration.

Definition toy_add (ds : list (data nat)) : option (data nat) :=
  match ds with
  | [DConst m; DConst n] => Some (DConst (m + n))
  | _ => None
  end.

#[global] Instance toy : Domain := {|
  const := nat;
  const_eqb := Nat.eqb;
  const_eqb_spec := Nat.eqb_eq;
  const_equal m n := Some (Nat.eqb m n);
  data_less d e := match d, e with DConst m, DConst n => Some (Nat.ltb m n) | _, _ => None end;
  const_truth n := match n with 0 => Some false | 1 => Some true | _ => None end;
  prim := unit
|}.

Definition toy_attribute (α : attr) (v : value term) : option (value term) :=
  match α, v with
  | 0, VTerm (Node f _) => Some (VConst f)
  | 1, VTerm (Node _ ts) => Some (VConst (length ts))
  | _, VConst c => Some (VConst c)
  | _, _ => None
  end.

Definition toy_meaning : interpretation term :=
  Interpretation toy_attribute (fun _ => on_data toy_add).

#[global] Instance toy_trees : Structure term := tree_structure toy_meaning.
#[global] Instance toy_sized : Sized term := tree_sized toy_meaning.

(** Answers of the machine, as lists of the free names that are asked for. *)
Definition toy_run (p : pattern) (t : term) (xs : list name)
    : option (list (list (option (value term)))) :=
  option_map (map (fun σ => map (theta σ) xs)) (run 1000 (init p t)).

(** The machine fails. *)
Definition fails (p : pattern) (t : term) : Prop := init p t ⇓ [].

(** The machine has an answer. *)
Definition succeeds (p : pattern) (t : term) : Prop := exists σ o, init p t ⇓ σ :: o.

(** There is a match. *)
Definition has_match (p : pattern) (t : term) : Prop := exists θ, [] ⊢ p @ θ ≈ t.

Lemma fails_by_run p t : run 1000 (init p t) = Some [] -> fails p t.
Proof. apply run_sound. Qed.

Lemma succeeds_by_run p t :
  match run 1000 (init p t) with Some (_ :: _) => true | _ => false end = true -> succeeds p t.
Proof.
  destruct (run 1000 (init p t)) as [[| σ o] |] eqn:R; try discriminate.
  intros _. exists σ, o. now apply run_sound in R.
Qed.

Lemma succeeds_has_match p t : succeeds p t -> has_match p t.
Proof.
  intros (σ & o & R). exists (theta σ).
  eapply answers_sound; [exact R | now left | apply extends_refl].
Qed.

(** Names and operators of the examples. *)

Definition nx : name := 0.
Definition ny : name := 1.
Definition nz : name := 2.
Definition nu : name := 3.
Definition nF : name := 4.

Definition op_a : op := 0.
Definition op_b : op := 1.
Definition op_c : op := 2.
Definition op_f : op := 3.
Definition op_g : op := 4.

Definition ta : term := Node op_a [].
Definition tb : term := Node op_b [].
Definition tc : term := Node op_c [].
Definition tf (ts : list term) : term := Node op_f ts.
Definition tg (ts : list term) : term := Node op_g ts.

Definition pa : pattern := POp op_a [].
Definition pb : pattern := POp op_b [].
Definition pc : pattern := POp op_c [].
Definition pf (ps : list pattern) : pattern := POp op_f ps.
Definition pg (ps : list pattern) : pattern := POp op_g ps.

(** [y.op = n] *)
Definition op_is (y : name) (n : nat) : guard := GEq (EAttr y 0) (EConst n).

(** [_] *)
Definition any (y : name) : pattern := PEx y (PVar y).
