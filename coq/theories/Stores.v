(** * Locations and stores

    Names are mapped to locations, and a store maps locations to values.  A local name gets a fresh
    location and a call passes locations on, so no renaming is needed and no name is captured. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms.

(** A location is that of a free name of the whole pattern, or an allocated one. *)
Inductive loc : Type :=
| LFree (x : name)
| LFresh (n : nat).

Definition loc_eqb (l l' : loc) : bool :=
  match l, l' with
  | LFree x, LFree y => Nat.eqb x y
  | LFresh m, LFresh n => Nat.eqb m n
  | _, _ => false
  end.

Lemma loc_eqb_spec l l' : loc_eqb l l' = true <-> l = l'.
Proof. destruct l, l'; simpl; rewrite ?Nat.eqb_eq; split; congruence. Qed.

Lemma loc_eqb_refl l : loc_eqb l l = true.
Proof. now apply loc_eqb_spec. Qed.

(** Location maps [ρ]. *)
Definition locs := name -> option loc.

(** [ρ₀]: free names need no set-up. *)
Definition ρ0 : locs := fun x => Some (LFree x).

Section Stores.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** A store [σ]: the next fresh location, and the bindings made so far. *)
Record store : Type := Store {
  next : nat;
  cells : list (loc * value T)
}.

Definition empty : store := Store 0 [].

Fixpoint assoc (l : loc) (cs : list (loc * value T)) : option (value T) :=
  match cs with
  | [] => None
  | (l', v) :: cs => if loc_eqb l l' then Some v else assoc l cs
  end.

(** [σ(ℓ)] *)
Definition get (σ : store) (l : loc) : option (value T) := assoc l (cells σ).

(** [σ[ℓ ↦ v]] *)
Definition set (σ : store) (l : loc) (v : value T) : store := Store (next σ) ((l, v) :: cells σ).

(** The store with one location more. *)
Definition alloc (σ : store) : store := Store (1 + next σ) (cells σ).

(** [θ_σ]: what a store says about the free names of the whole pattern. *)
Definition theta (σ : store) : name -> option (value T) := fun x => get σ (LFree x).

(** Bind a location if it is unbound, compare if it is bound. *)
Definition bind (σ : store) (l : loc) (v : value T) : option store :=
  match get σ l with
  | None => Some (set σ l v)
  | Some w => if veqb w v then Some σ else None
  end.

(** Bind what a name stands at. *)
Definition bind_name (σ : store) (ρ : locs) (x : name) (v : value T) : option store :=
  option_bind (ρ x) (fun l => bind σ l v).

Lemma get_set σ l v l' : get (set σ l v) l' = if loc_eqb l' l then Some v else get σ l'.
Proof. reflexivity. Qed.

Lemma get_set_same σ l v : get (set σ l v) l = Some v.
Proof. now rewrite get_set, loc_eqb_refl. Qed.

Lemma bind_cases σ l v σ' :
  bind σ l v = Some σ' -> (get σ l = Some v /\ σ' = σ) \/ (get σ l = None /\ σ' = set σ l v).
Proof.
  unfold bind. destruct (get σ l) as [w |] eqn:G; [| intros [= <-]; auto].
  destruct (veqb w v) eqn:E; [| discriminate]. apply veqb_spec in E. subst.
  intros [= <-]. auto.
Qed.

Lemma bind_name_loc σ ρ x v σ' :
  bind_name σ ρ x v = Some σ' -> exists l, ρ x = Some l /\ bind σ l v = Some σ'.
Proof. unfold bind_name. destruct (ρ x) as [l |]; [eauto | discriminate]. Qed.

(** A successful [bind_name] leaves the name bound to the value, loses nothing and allocates
    nothing. *)
Lemma bind_name_sound σ ρ x v σ' :
  bind_name σ ρ x v = Some σ' ->
  (get σ' ∘ ρ) x = Some v /\ get σ ⊆ get σ' /\ next σ' = next σ.
Proof.
  intros B. apply bind_name_loc in B as (l & E & B). unfold compose. rewrite E.
  apply bind_cases in B as [[G ->] | [G ->]].
  - auto using extends_refl.
  - rewrite get_set_same. repeat split. intros l' w G'. rewrite get_set.
    destruct (loc_eqb l' l) eqn:Q; auto. apply loc_eqb_spec in Q. congruence.
Qed.

(** If a solution gives the name that value, binding succeeds and stays below the solution. *)
Lemma bind_name_complete σ ρ x v s :
  get σ ⊆ s -> (s ∘ ρ) x = Some v -> exists σ', bind_name σ ρ x v = Some σ' /\ get σ' ⊆ s.
Proof.
  unfold compose, bind_name, bind. intros L. destruct (ρ x) as [l |]; [| discriminate]. intros E.
  simpl. destruct (get σ l) as [w |] eqn:G.
  - assert (w = v) as -> by (apply L in G; congruence). rewrite veqb_refl. eauto.
  - eexists. split; [reflexivity |]. intros l' w. rewrite get_set.
    destruct (loc_eqb l' l) eqn:Q; auto. apply loc_eqb_spec in Q. congruence.
Qed.
End Stores.
Arguments store {Δ} T.
