(** * What comes after a call

    Calls that are alike have searches that are alike.  After a call with nothing left to bind, the same
    comes to pass from each of its answers, and without it. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep Ordered
  Tabling Visits Compile CodeVisits Repetitions.

Section AfterCalls.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Stores in which the names of what is to do stand *)

Definition stands_in (σ : store T) (a : action T) : Prop :=
  match a with
  | AMatch _ ρ _ _ | AGuard ρ _ | ALet ρ _ _ | AMatchC _ ρ _ _ =>
      forall x l, ρ x = Some l -> allocated σ l
  | ACheck l => allocated σ l
  end.

Definition placed (σ : store T) (k : list (action T)) : Prop :=
  unused σ /\ Forall (stands_in σ) k.

Lemma stands_later (σ τ : store T) k :
  next σ <= next τ -> Forall (stands_in σ) k -> Forall (stands_in τ) k.
Proof.
  intros L. apply Forall_impl. intros a S.
  destruct a; simpl in *; eauto using allocated_mono.
Qed.

Lemma bind_placed σ ρ x v τ k :
  bind_name σ ρ x v = Some τ -> (forall x l, ρ x = Some l -> allocated σ l) ->
  unused σ -> Forall (stands_in σ) k -> placed τ k /\ next σ <= next τ.
Proof.
  intros B A U K. pose proof (follows_bind _ _ _ _ _ B) as [_ N _ U']. split; auto. split.
  - apply U'; auto. now split.
  - eapply stands_later; eauto.
Qed.

Lemma children_stand σ R ρ ps ts k :
  (forall x l, ρ x = Some l -> allocated σ l) -> Forall (stands_in σ) k ->
  Forall (stands_in σ) (match_children R ρ ps ts ++ k).
Proof.
  intros S K. revert ts. induction ps as [| p ps IH]; intros [| t ts]; simpl; auto.
Qed.

Lemma do_action_placed σ a k c : placed σ (a :: k) -> In c (do_action σ a k) ->
  placed (fst c) (snd c) /\ next σ <= next (fst c).
Proof.
  intros [U K] I. inversion K as [| ? ? Sa Sk]; subst.
  apply (expand_becomes (σ, a :: k)) in I. inversion I; subst; clear I; simpl in *;
    try (eapply bind_placed; eauto using children_stand; fail);
    try (split; [split; simpl; auto using children_stand | auto]; fail).
  - (* ex *) destruct (proj2 stays_located σ ρ (conj U Sa)) as (_ & L & _).
    split; [split; [apply (L x) |] | simpl; auto].
    constructor; [exact (proj2 (L x)) |]. constructor; [simpl; lia |].
    eapply stands_later; [| exact Sk]. simpl. auto.
  - (* mu *) split; [split; auto | auto]. constructor; auto. simpl. intros y l E.
    apply callenv_range in E as (z & E). eauto.
  - (* call *) split; [split; auto | auto]. constructor; auto. simpl. intros y l E.
    apply callenv_range in E as (z & E). eauto.
Qed.

Lemma all_split_placed σ k : placed σ k -> placed σ (all_split k).
Proof.
  intros [U K]. split; auto. destruct k as [| [R ρ p t | | | |] k]; auto.
  inversion K as [| ? ? Sa Sk]; subst. simpl in *. clear K. revert k Sk.
  induction p using pattern_ind'; intros k Sk; simpl; auto.
Qed.

(** ** Searches of calls that are alike *)

Lemma like_searched R p t σ ρ σ' ρ' o :
  located σ ρ -> located σ' ρ' -> alike σ ρ σ' ρ' ->
  visiting [((σ, [AMatch R ρ p t]), [])] o ->
  exists o', visiting [((σ', [AMatch R ρ' p t]), [])] o' /\ map snd o = map snd o'.
Proof.
  intros Lf L A H. destruct (alike_pairs _ _ _ _ Lf L A) as (M & G & P).
  destruct (visiting_alike M eq _ _ ltac:(now intros u v v' ->) H
    [((σ', [AMatch R ρ' p t]), [])]) as (o' & H' & F).
  - constructor; [| constructor]. split; auto. apply alike_intro; auto.
    constructor; [now constructor | constructor].
  - exists o'. split; auto. clear - F. induction F as [| a a' o o' [_ E] _ IH]; simpl; congruence.
Qed.

(** What was visited before makes no difference. *)
Lemma visiting_from σ (a : action T) v o : visiting [((σ, [a]), v)] o ->
  exists o', visiting [((σ, [a]), [])] o' /\ o = map (fun b => (fst b, snd b ++ v)) o'.
Proof.
  intros H. apply visiting_answers in H as A. simpl in A.
  destruct (answers_visiting _ _ A [((σ, [a]), [])] eq_refl) as (o' & H' & _).
  exists o'. split; auto. eapply visiting_deterministic; [exact H |].
  pose proof (visiting_then [] v _ _ H' (map (fun b => [(fst b, snd b ++ v)]) o')) as G.
  replace (map _ o') with (concat (map (fun b : answer T => [(fst b, snd b ++ v)]) o')).
  - apply G. clear. induction o'; simpl; constructor; auto. constructor. constructor.
  - clear. induction o'; simpl; congruence.
Qed.

(** ** What comes after a call with nothing left to bind *)

Definition same_old (σ : store T) : loc -> loc -> Prop := fun l l' => l = l' /\ allocated σ l.

(** A store that differs from [σ] in what was allocated later alone. *)
Record beyond (σ τ : store T) : Prop := {
  beyond_old : forall l, allocated σ l -> get τ l = get σ l;
  beyond_next : next σ <= next τ;
  beyond_unused : unused τ
}.

Lemma beyond_refl σ : unused σ -> beyond σ σ.
Proof. split; auto. Qed.

Lemma beyond_agree σ τ τ' : beyond σ τ -> beyond σ τ' -> agree (same_old σ) τ τ'.
Proof.
  intros [G N U] [G' N' U']. unfold same_old. split; auto.
  - intros l l' [<- B]. now rewrite G, G'.
  - intros l l1 l2 _ [<- _] [<- _]. reflexivity.
  - intros l1 l2 l _ [-> _] [-> _]. reflexivity.
  - intros l l' [<- B]. split; eapply allocated_mono; try exact B; auto.
Qed.

Lemma actions_old σ k : Forall (stands_in σ) k -> Forall2 (action_alike (same_old σ)) k k.
Proof.
  assert (P : forall ρ, (forall x l, ρ x = Some l -> allocated σ l) -> paired (same_old σ) ρ ρ).
  { intros ρ B x. destruct (ρ x) eqn:E; auto. split; eauto. }
  induction 1 as [| a k S _ IH]; constructor; auto.
  destruct a; constructor; try (apply P; exact S). now split.
Qed.

(** It does the same from each such store. *)
Lemma beyond_continues (V : list T -> list T -> Prop) σ τ τ' k v v' a :
  (forall u v v', V v v' -> V (u ++ v) (u ++ v')) -> V v v' ->
  beyond σ τ -> beyond σ τ' -> Forall (stands_in σ) k ->
  visiting [((τ, k), v)] a ->
  exists a', visiting [((τ', k), v')] a' /\
    Forall2 (fun b b' => same_known (next σ) b b' /\ V (snd b) (snd b')) a a'.
Proof.
  intros Va E B B' K H.
  destruct (visiting_alike (same_old σ) V _ _ Va H [((τ', k), v')]) as (a' & H' & F).
  - constructor; [| constructor]. split; auto.
    apply alike_intro; [now apply beyond_agree | now apply actions_old].
  - exists a'. split; auto. clear - F. induction F as [| b b' o o' [G W] _ IH]; constructor; auto.
    split; auto. intros l B. apply (agree_get _ _ _ G). now split.
Qed.

Lemma closed_beyond R p t σ ρ o a :
  closed σ ρ -> located σ ρ -> visiting [((σ, [AMatch R ρ p t]), [])] o -> In a o ->
  beyond σ (fst a).
Proof.
  intros C L H I. apply visiting_answers, call_evaluates in H. simpl in H.
  apply (in_map fst) in I. split.
  - intros l B. eapply closed_unchanged; eauto.
  - apply (proj1 evaluates_follows _ _ _ _ _ _ H _ I).
  - apply (proj1 evaluates_follows _ _ _ _ _ _ H _ I); auto. apply L.
Qed.

(** The others are found again in what is found from one such store. *)
Lemma repeated (V : list T -> list T -> Prop) σ τ τ' k v v' r n :
  (forall u v v', V v v' -> V (u ++ v) (u ++ v')) -> V v v' -> n <= next σ ->
  beyond σ τ -> beyond σ τ' -> Forall (stands_in σ) k -> visiting [((τ, k), v)] r ->
  exists r', visiting [((τ', k), v')] r' /\
    Forall2 (fun a a' => same_known n a a' /\ V (snd a) (snd a')) r r' /\
    forall c, In c r' -> exists a, In a r /\ same_known n a c.
Proof.
  intros Va E L B B' K H.
  destruct (beyond_continues V σ τ τ' k v v' r) as (r' & H' & F); auto.
  assert (F' : Forall2 (fun a a' => same_known n a a' /\ V (snd a) (snd a')) r r').
  { clear - F L. induction F as [| a a' r r' [S W] _ IH]; constructor; auto.
    split; auto. eapply same_known_less; eauto. }
  exists r'. repeat split; auto. clear - F'. induction F' as [| a a' r r' [S _] _ IH]; intros c [].
  - subst. exists a. simpl. auto.
  - destruct (IH c H) as (b & I & Sb). exists b. simpl. auto.
Qed.

(** Going on from any such store finds all that there is, but for repetitions. *)
Lemma after_closed (V : list T -> list T -> Prop) σ ρ R p t k v b o τ w r n :
  (forall u v v', V v v' -> V (u ++ v) (u ++ v')) -> n <= next σ ->
  closed σ ρ -> located σ ρ -> Forall (stands_in σ) k ->
  visiting [((σ, [AMatch R ρ p t]), [])] (b :: o) ->
  beyond σ τ -> V w (snd b ++ v) -> visiting [((τ, k), w)] r ->
  exists r' rest, visiting [((σ, AMatch R ρ p t :: k), v)] (r' ++ rest) /\
    Forall2 (fun a a' => same_known n a a' /\ V (snd a) (snd a')) r r' /\
    forall c, In c rest -> exists a, In a r' /\ same_known n a c.
Proof.
  intros Va N C L K H B E Hr.
  assert (Bs : forall a, In a (b :: o) -> beyond σ (fst a)).
  { intros a I. eapply closed_beyond; eauto. }
  destruct (repeated V σ τ (fst b) k w (snd b ++ v) r n) as (r' & Hr' & F & _); auto.
  { apply Bs. now left. }
  assert (Rest : exists rs, Forall2 (fun a r => visiting [((fst a, k), snd a ++ v)] r) o rs /\
    forall c, In c (concat rs) -> exists a, In a r /\ same_known n a c).
  { clear H. induction o as [| a o IH]; [exists []; split; [constructor | intros c []] |].
    destruct IH as (rs & Frs & Crs); [intros d [<- | I]; apply Bs; simpl; auto |].
    destruct (repeated (fun _ _ => True) σ τ (fst a) k w (snd a ++ v) r n)
      as (z & Hz & _ & Cz); auto; [apply Bs; simpl; auto |].
    exists (z :: rs). split; [now constructor |]. simpl. intros c I.
    apply in_app_or in I as [I | I]; auto. }
  destruct Rest as (rs & Frs & Crs). exists r', (concat rs). split; [| split; auto].
  - apply (visiting_then k v _ _ H (r' :: rs)). now constructor.
  - intros c I. destruct (Crs c I) as (a & Ia & Ea). clear - F Ia Ea.
    induction F as [| d d' r r' [S _] _ IH]; [destruct Ia | destruct Ia as [-> | Ia]].
    + exists d'. split; [now left |]. apply same_known_trans with a; auto using same_known_sym.
    + destruct (IH Ia) as (s & Is & Es). exists s. simpl. auto.
Qed.

Lemma visiting_then_parts k v st o : visiting st o -> forall a, visiting (map (then_do k v) st) a ->
  exists rs, Forall2 (fun b r => visiting [((fst b, k), snd b ++ v)] r) o rs /\ a = concat rs.
Proof.
  induction 1 as [| σ w stk o _ IH | σ b j w stk o _ IH]; intros a H.
  - inversion H; subst. exists []. split; auto.
  - destruct (visiting_split _ _ H [((σ, k), w ++ v)] (map (then_do k v) stk) eq_refl)
      as (x & y & X & Y & ->).
    destruct (IH y Y) as (rs & F & ->). exists (x :: rs). split; auto.
  - apply IH. simpl in H. unfold then_do at 1 in H. simpl in H. inversion H; subst.
    now rewrite map_app, then_visit.
Qed.

(** Without the call, no more is found. *)
Lemma without_closed σ ρ R p t k v b o r n :
  n <= next σ -> closed σ ρ -> located σ ρ -> Forall (stands_in σ) k ->
  visiting [((σ, [AMatch R ρ p t]), [])] (b :: o) ->
  visiting [((σ, AMatch R ρ p t :: k), v)] r ->
  exists z, visiting [((σ, k), v)] z /\ forall c, In c z -> exists a, In a r /\ same_known n a c.
Proof.
  intros N C L K H Hr. destruct (visiting_then_parts k v _ _ H r Hr) as (rs & F & ->).
  inversion F as [| ? r' ? rs' Hr' _]; subst.
  assert (B : beyond σ (fst b)) by (eapply closed_beyond; eauto; now left).
  destruct (repeated (fun _ _ => True) σ (fst b) σ k (snd b ++ v) v r' n)
    as (z & Hz & _ & Cz); auto; [apply beyond_refl, L |].
  exists z. split; auto. intros c I. destruct (Cz c I) as (a & Ia & E). exists a. split; auto.
  simpl. apply in_or_app. auto.
Qed.
End AfterCalls.
