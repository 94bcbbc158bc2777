(** * Names, partial maps, and the passing of parameters

    One namespace serves for term variables, operator variables and the parameters of recursive
    patterns.  Environments, location maps and stores are partial maps, ordered by information. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.

(** Names are drawn from a countable set. *)
Definition name := nat.

(** ** Finite sets of names, as lists *)

Definition mem (x : name) (D : list name) : bool := existsb (Nat.eqb x) D.

(** [D ∖ x] *)
Definition without (x : name) (D : list name) : list name :=
  filter (fun y => negb (Nat.eqb y x)) D.

(** [D ∩ D'] *)
Definition inter (D D' : list name) : list name := filter (fun y => mem y D') D.

(** [D ⊆ D'] *)
Definition subset (D D' : list name) : bool := forallb (fun y => mem y D') D.

Lemma mem_spec x D : mem x D = true <-> In x D.
Proof.
  unfold mem. rewrite existsb_exists. split.
  - intros [y [H E]]. apply Nat.eqb_eq in E. now subst.
  - intros H. exists x. now rewrite Nat.eqb_refl.
Qed.

Lemma without_spec y x D : In y (without x D) <-> In y D /\ y <> x.
Proof. unfold without. rewrite filter_In, negb_true_iff, Nat.eqb_neq. tauto. Qed.

Lemma inter_spec y D D' : In y (inter D D') <-> In y D /\ In y D'.
Proof. unfold inter. now rewrite filter_In, mem_spec. Qed.

Lemma subset_spec D D' : subset D D' = true <-> incl D D'.
Proof. unfold subset, incl. rewrite forallb_forall. now setoid_rewrite mem_spec. Qed.

(** ** Partial maps *)

(** [m ⊆ m']: the map [m'] knows at least what [m] knows. *)
Definition extends {K V : Type} (m m' : K -> option V) : Prop :=
  forall k v, m k = Some v -> m' k = Some v.

Declare Scope pypm_scope.
Open Scope pypm_scope.

Notation "m ⊆ m'" := (extends m m') (at level 70) : pypm_scope.

Lemma extends_refl {K V} (m : K -> option V) : m ⊆ m.
Proof. intros k v E. exact E. Qed.

Lemma extends_trans {K V} (m1 m2 m3 : K -> option V) : m1 ⊆ m2 -> m2 ⊆ m3 -> m1 ⊆ m3.
Proof. intros H12 H23 k v E. auto. Qed.

(** [update m x v] is [m[x ↦ v]]. *)
Definition update {V : Type} (m : name -> option V) (x : name) (v : V) : name -> option V :=
  fun y => if Nat.eqb y x then Some v else m y.

Lemma update_same {V} (m : name -> option V) x v : update m x v x = Some v.
Proof. unfold update. now rewrite Nat.eqb_refl. Qed.

Lemma update_other {V} (m : name -> option V) x v y : y <> x -> update m x v y = m y.
Proof. unfold update. intros N. apply Nat.eqb_neq in N. now rewrite N. Qed.

Lemma update_extends {V} (m m' : name -> option V) x v :
  m ⊆ m' -> update m x v ⊆ update m' x v.
Proof. intros H y w. unfold update. destruct (Nat.eqb y x); auto. Qed.

(** [s ∘ ρ]: what a name stands for, through the location it stands at. *)
Definition compose {L V : Type} (s : L -> option V) (ρ : name -> option L) : name -> option V :=
  fun x => match ρ x with Some l => s l | None => None end.

Notation "s ∘ ρ" := (compose s ρ) (at level 40, left associativity) : pypm_scope.

Lemma compose_extends {L V} (s s' : L -> option V) ρ : s ⊆ s' -> s ∘ ρ ⊆ s' ∘ ρ.
Proof. intros H x v. unfold compose. destruct (ρ x); auto. Qed.

(** ** Parameters and arguments *)

(** [arg xs ys x] is the actual argument paired with the first occurrence of the parameter [x], if
    both lists are long enough. *)
Fixpoint arg (xs ys : list name) (x : name) : option name :=
  match xs, ys with
  | x' :: xs, y :: ys => if Nat.eqb x x' then Some y else arg xs ys x
  | _, _ => None
  end.

(** The environment of a body: a parameter stands for what its argument stands for outside, and
    nothing else is visible. *)
Definition callenv {V : Type} (xs ys : list name) (m : name -> option V) : name -> option V :=
  fun x => match arg xs ys x with Some y => m y | None => None end.

Lemma callenv_extends {V} xs ys (m m' : name -> option V) :
  m ⊆ m' -> callenv xs ys m ⊆ callenv xs ys m'.
Proof. intros H x v. unfold callenv. destruct (arg xs ys x); auto. Qed.

Lemma compose_callenv {L V} (s : L -> option V) xs ys ρ x :
  (s ∘ callenv xs ys ρ) x = callenv xs ys (s ∘ ρ) x.
Proof. unfold compose, callenv. destruct (arg xs ys x); reflexivity. Qed.

(** The actual arguments of those parameters that are listed in [O]. *)
Definition arguments (xs O ys : list name) : list name :=
  flat_map (fun x => match arg xs ys x with Some y => [y] | None => [] end) O.

Lemma arguments_spec xs O ys y :
  In y (arguments xs O ys) <-> exists x, In x O /\ arg xs ys x = Some y.
Proof.
  unfold arguments. rewrite in_flat_map. split; intros [x [I H]]; exists x; split; auto.
  - destruct (arg xs ys x); simpl in H; [destruct H as [-> | []]; auto | destruct H].
  - rewrite H. simpl. auto.
Qed.
