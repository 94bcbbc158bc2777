(** * Items: what the index asks of a subject

    An item is what is left of a pattern without its names and most of its guards: an operator over
    items, a choice, a conjunction, a fact about the subject alone, a recursive body.  [item_of] gives
    the item of a pattern; whatever the pattern matches satisfies it ([items_admit]), so that a subject
    which does not need not be searched.  The converse does not hold.

    Later guards and constraints ask something of what a pattern binds.  [E] are these expectations: for
    a name, an item that its term satisfies in every match. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Section Items.
Context {Δ : Domain}.

Inductive item : Type :=
| Anything
| Nothing
| Applied (f : option op) (js : list item)     (** an operator, or any, over such children *)
| Fact (x : name) (g : guard)                  (** [g] is true of the subject, as [x], alone *)
| Either (i j : item)
| Both (i j : item)
| Body (R : recursion) (E : list (name * item)).   (** of the first definition, under expectations *)

Definition expected : Type := list (name * item).

(** The first item that is expected of a name; [Anything] if there is none. *)
Definition expects (E : expected) (x : name) : item :=
  match find (fun e => Nat.eqb x (fst e)) E with Some (_, i) => i | None => Anything end.

(** Nothing is expected of a local name from outside. *)
Definition expect_none (x : name) (E : expected) : expected := (x, Anything) :: E.

(** What is expected of the parameters of a body, through the actual arguments. *)
Definition expect_arguments (xs ys : list name) (E : expected) : expected :=
  flat_map (fun x => match arg xs ys x with Some y => [(x, expects E y)] | None => [] end) xs.

(** The guards that the index reads: any choice of those about one name.  [versions] are the
    expectations under which a body has an item of its own; under any others it has the item without. *)
Variable reads : guard -> bool.
Variable versions : recursion -> expected -> bool.

Definition asked (g : guard) : option name :=
  match guard_vars g with
  | [x] => if reads g then Some x else None
  | _ => None
  end.

Definition body_item (R : recursion) (E : expected) : item :=
  Body R (if versions R E then E else []).

Fixpoint item_of (R : recursion) (E : expected) (p : pattern) : item :=
  match p with
  | PVar x => expects E x
  | POp f ps => Applied (Some f) (map (item_of R E) ps)
  | PFun _ ps => Applied None (map (item_of R E) ps)
  | PAlt p q => Either (item_of R E p) (item_of R E q)
  | PEx x p => item_of R (expect_none x E) p
  | PGuard p g =>
      match asked g with
      | Some x => item_of R ((x, Both (Fact x g) (expects E x)) :: E) p
      | None => item_of R E p
      end
  | PLet p _ _ => item_of R E p
  | PMatch p p' x => item_of R ((x, Both (item_of R E p') (expects E x)) :: E) p
  | PMu xs ins outs small b ys =>
      body_item (Def xs ins outs small b :: R) (expect_arguments xs ys E)
  | PCall i ys =>
      match skipn i R with
      | d :: R' => body_item (d :: R') (expect_arguments (d_params d) ys E)
      | [] => Nothing
      end
  end.

(** ** Which subjects satisfy an item *)

Context {T : Type} {Σ : Structure T}.

Definition alone (x : name) (t : T) : env T := update (fun _ => None) x (VTerm t).

Definition may_call (f : op) (o : option op) : bool :=
  match o with Some g => Nat.eqb f g | None => true end.

Inductive satisfies : T -> item -> Prop :=
| S_anything t : satisfies t Anything
| S_applied t f ts o js :
    dest t = (f, ts) -> may_call f o = true -> satisfy ts js -> satisfies t (Applied o js)
| S_fact t x g : geval (alone x t) g = Some true -> satisfies t (Fact x g)
| S_either_l t i j : satisfies t i -> satisfies t (Either i j)
| S_either_r t i j : satisfies t j -> satisfies t (Either i j)
| S_both t i j : satisfies t i -> satisfies t j -> satisfies t (Both i j)
| S_body t d R E : satisfies t (item_of (d :: R) E (d_body d)) -> satisfies t (Body (d :: R) E)
with satisfy : list T -> list item -> Prop :=
| S_nil : satisfy [] []
| S_cons t ts j js : satisfies t j -> satisfy ts js -> satisfy (t :: ts) (j :: js).

Scheme satisfies_mut := Induction for satisfies Sort Prop
  with satisfy_mut := Induction for satisfy Sort Prop.
Combined Scheme satisfies_mutind from satisfies_mut, satisfy_mut.

(** ** The index lets through whatever could match *)

(** The terms that an environment binds are as expected. *)
Definition as_expected (E : expected) (θ : env T) : Prop :=
  forall x t, θ x = Some (VTerm t) -> satisfies t (expects E x).

Lemma as_expected_nil θ : as_expected [] θ.
Proof. intros x t _. constructor. Qed.

Lemma as_expected_cons E θ x i :
  as_expected E θ -> (forall t, θ x = Some (VTerm t) -> satisfies t i) ->
  as_expected ((x, i) :: E) θ.
Proof.
  intros H N y t Ey. unfold expects. simpl. destruct (Nat.eqb y x) eqn:Q; [| now apply H].
  apply Nat.eqb_eq in Q as ->. auto.
Qed.

Lemma as_expected_none E θ x v : as_expected E θ -> as_expected (expect_none x E) (update θ x v).
Proof.
  intros H y t. unfold expects, update. simpl.
  destruct (Nat.eqb y x); [constructor | apply H].
Qed.

Lemma expects_arguments xs ys E x y :
  arg xs ys x = Some y -> expects (expect_arguments xs ys E) x = expects E y.
Proof.
  intros A. assert (I : In x xs).
  { revert ys A. induction xs as [| x' xs IH]; intros [| y' ys] A; try discriminate. simpl in A.
    destruct (Nat.eqb x x') eqn:Q; [apply Nat.eqb_eq in Q; now left | right; eauto]. }
  unfold expect_arguments, expects at 1. generalize dependent xs. intros xs A.
  assert (G : forall zs, In x zs ->
    find (fun e => Nat.eqb x (fst e))
      (flat_map (fun x => match arg xs ys x with Some y => [(x, expects E y)] | None => [] end) zs)
    = Some (x, expects E y)).
  { induction zs as [| z zs IH]; intros I; [destruct I |]. simpl.
    destruct (Nat.eqb x z) eqn:Q.
    - apply Nat.eqb_eq in Q as <-. rewrite A. simpl. now rewrite Nat.eqb_refl.
    - destruct I as [-> | I]; [now rewrite Nat.eqb_refl in Q |].
      destruct (arg xs ys z); simpl; rewrite ?Q; auto. }
  intros I. now rewrite (G xs I).
Qed.

Lemma as_expected_arguments E θ xs ys :
  as_expected E θ -> as_expected (expect_arguments xs ys E) (callenv xs ys θ).
Proof.
  intros H x t. unfold callenv. destruct (arg xs ys x) as [y |] eqn:A; [| discriminate].
  intros Ey. rewrite (expects_arguments _ _ _ _ _ A). auto.
Qed.

Lemma as_expected_version E θ R :
  as_expected E θ -> as_expected (if versions R E then E else []) θ.
Proof. intros H. destruct (versions R E); auto using as_expected_nil. Qed.

Lemma asked_fact g x θ t :
  asked g = Some x -> geval θ g = Some true -> θ x = Some (VTerm t) -> satisfies t (Fact x g).
Proof.
  unfold asked. destruct (guard_vars g) as [| y [|]] eqn:V; try discriminate.
  destruct (reads g); [| discriminate]. intros [= ->] G B. constructor. rewrite <- G.
  apply geval_agree. rewrite V. intros y [<- | []]. unfold alone. now rewrite update_same.
Qed.

Lemma items_admit_mut :
  (forall R p θ t, R ⊢ p @ θ ≈ t ->
     forall E, as_expected E θ -> satisfies t (item_of R E p)) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts ->
     forall E, as_expected E θ -> satisfy ts (map (item_of R E) ps)).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => forall E, as_expected E θ -> satisfies t (item_of R E p))
    (fun R ps θ ts _ => forall E, as_expected E θ -> satisfy ts (map (item_of R E) ps)));
    simpl; intros.
  - (* var *) auto.
  - (* op *) econstructor; eauto. apply Nat.eqb_refl.
  - (* fun *) econstructor; eauto.
  - (* altL *) apply S_either_l. auto.
  - (* altR *) apply S_either_r. auto.
  - (* ex *) eauto using as_expected_none.
  - (* guard *) destruct (asked g) as [x |] eqn:A; [| auto].
    apply H, as_expected_cons; auto. intros u B. constructor; [eapply asked_fact |]; eauto.
  - (* let *) auto.
  - (* match *) apply H, as_expected_cons; auto. intros u B.
    assert (u = t') as -> by congruence. constructor; auto.
  - (* mu *) constructor. apply H, as_expected_version, as_expected_arguments; auto.
  - (* call *) rewrite e. constructor. apply H, as_expected_version, as_expected_arguments; auto.
  - constructor.
  - constructor; auto.
Qed.

Theorem items_admit R p θ t E :
  R ⊢ p @ θ ≈ t -> as_expected E θ -> satisfies t (item_of R E p).
Proof. intros H. now apply (proj1 items_admit_mut _ _ _ _ H). Qed.

Theorem items_admit_all R ps θ ts E :
  R ⊢ ps @ θ ≈* ts -> as_expected E θ -> satisfy ts (map (item_of R E) ps).
Proof. intros H. now apply (proj2 items_admit_mut _ _ _ _ H). Qed.

(** ** A function that decides, with fuel *)

Definition lazily_or (a : option bool) (b : unit -> option bool) : option bool :=
  match a with Some true => Some true | Some false => b tt | None => None end.

Definition lazily_and (a : option bool) (b : unit -> option bool) : option bool :=
  match a with Some true => b tt | Some false => Some false | None => None end.

Section All.
Variable f : T -> item -> option bool.

Fixpoint all_satisfy (ts : list T) (js : list item) : option bool :=
  match ts, js with
  | [], [] => Some true
  | t :: ts, j :: js => lazily_and (f t j) (fun _ => all_satisfy ts js)
  | _, _ => Some false
  end.
End All.

Fixpoint satisfies_within (n : nat) (t : T) (i : item) : option bool :=
  match n with
  | 0 => None
  | S n =>
      match i with
      | Anything => Some true
      | Nothing | Body [] _ => Some false
      | Applied o js =>
          let (f, ts) := dest t in
          if may_call f o then all_satisfy (satisfies_within n) ts js else Some false
      | Fact x g => Some (match geval (alone x t) g with Some true => true | _ => false end)
      | Either i j => lazily_or (satisfies_within n t i) (fun _ => satisfies_within n t j)
      | Both i j => lazily_and (satisfies_within n t i) (fun _ => satisfies_within n t j)
      | Body (d :: R) E => satisfies_within n t (item_of (d :: R) E (d_body d))
      end
  end.

Lemma all_satisfy_spec (f : T -> item -> option bool) ts :
  (forall t j b, f t j = Some b -> if b then satisfies t j else ~ satisfies t j) ->
  forall js b, all_satisfy f ts js = Some b -> if b then satisfy ts js else ~ satisfy ts js.
Proof.
  intros H. induction ts as [| t ts IH]; intros [| j js] b; simpl.
  - intros [= <-]. constructor.
  - intros [= <-] S. inversion S.
  - intros [= <-] S. inversion S.
  - destruct (f t j) as [[] |] eqn:F; simpl; try discriminate; apply H in F.
    + intros E. apply IH in E. destruct b; [now constructor |]. intros S. inversion S; auto.
    + intros [= <-] S. inversion S; auto.
Qed.

Theorem satisfies_within_spec n : forall t i b,
  satisfies_within n t i = Some b -> if b then satisfies t i else ~ satisfies t i.
Proof.
  induction n as [| n IH]; intros t i b; simpl; [discriminate |].
  destruct i as [| | o js | x g | i j | i j | [| d R] E].
  - intros [= <-]. constructor.
  - intros [= <-] S. inversion S.
  - destruct (dest t) as [f ts] eqn:D. destruct (may_call f o) eqn:M.
    + intros A. apply (all_satisfy_spec _ _ IH) in A. destruct b; [econstructor; eauto |].
      intros S. inversion S; subst. congruence.
    + intros [= <-] S. inversion S; subst. congruence.
  - intros [= <-]. destruct (geval _ g) as [[] |] eqn:G; try (constructor; exact G);
      intros S; inversion S; congruence.
  - destruct (satisfies_within n t i) as [[] |] eqn:A; simpl; try discriminate; apply IH in A.
    + intros [= <-]. now apply S_either_l.
    + intros B. apply IH in B. destruct b; [now apply S_either_r |]. intros S. inversion S; auto.
  - destruct (satisfies_within n t i) as [[] |] eqn:A; simpl; try discriminate; apply IH in A.
    + intros B. apply IH in B. destruct b; [now constructor |]. intros S. inversion S; auto.
    + intros [= <-] S. inversion S; auto.
  - intros [= <-] S. inversion S.
  - intros A. apply IH in A. destruct b; [now constructor |]. intros S. inversion S; auto.
Qed.
End Items.
