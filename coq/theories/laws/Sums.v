(** * Sums over indices, and the normal form of an expression

    [norm_with] brings an expression into a sum of products, given what to do with sums and maxima over
    indices: at first nothing ([sorted]); then, with that to sort what was renamed, each sum leaves what
    does not depend on its index, is joined with the sums in it, and gets canonical indices. *)

From Coq Require Import List Bool ZArith QArith Qround Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers Functions.

#[local] Arguments Qred : simpl never.

Definition binder : Type := Z * expr.    (* an index, and the size below which it runs *)
Fixpoint wrap (bs : list binder) (e : expr) : expr :=
  match bs with [] => e | (v, n) :: bs => Sum v n (wrap bs e) end.

(** ** The normal form, given what to do with sums *)
Definition each_of : Type := Z -> expr -> expr -> expr -> expr.
(** Arguments for each index are a function's own: it is not taken case by case. *)
Fixpoint spread (e : expr) : bool :=
  match e with Cons _ b => spread b | Each _ _ _ _ => true | _ => false end.

Section Norm.
Variables total largest : Z -> expr -> poly -> poly.
Variable every : each_of.

Fixpoint norm_with (e : expr) {struct e} : poly :=
  match e with
  | Num q => if Qeq_bool q 0 then [] else [(Qred q, [])]
  | Size _ | Var _ | Nil | Cons _ _ | Each _ _ _ _ => atom e
  | Read x a => atom (Read x (norm_list a))
  | Add a b => padd (norm_with a) (norm_with b)
  | Mul a b => pmul (norm_with a) (norm_with b)
  | Pow a q => ppow (norm_with a) (Qred q)
  | Exp a => by_cases most_cases pexp (norm_with a)
  | Fn f a => if spread a then atom (Fn f (norm_list a)) else function f (norm_args a)
  | Sum v n a => total v (reify (norm_with n)) (norm_with a)
  | Max v n a => largest v (reify (norm_with n)) (norm_with a)
  end
with norm_list (e : expr) {struct e} : expr :=
  match e with
  | Cons a b => Cons (reify (norm_with a)) (norm_list b)
  | Each v n a b => every v (reify (norm_with n)) (norm_list a) (norm_list b)
  | _ => e
  end
with norm_args (e : expr) {struct e} : list poly :=
  match e with
  | Cons a b => norm_with a :: norm_args b
  | _ => []
  end.
End Norm.

Definition plain (bind : Z -> expr -> expr -> expr) (v : Z) (n : expr) (p : poly) : poly := atom (bind v n (reify p)).
Definition sorted : expr -> poly := norm_with (plain Sum) (plain Max) Each.
Definition sorted_list : expr -> expr := norm_list (plain Sum) (plain Max) Each.

(** ** Canonical indices: negative ones, further down for what is further outside *)
Fixpoint depth (e : expr) : Z :=
  match e with
  | Num _ | Size _ | Nil | Var _ => 0
  | Read _ a | Pow a _ | Exp a | Fn _ a => depth a
  | Cons a b | Add a b | Mul a b => Z.max (depth a) (depth b)
  | Sum _ n a | Max _ n a => Z.max (depth n) (depth a + 1)
  | Each _ n a b => Z.max (Z.max (depth n) (depth a + 1)) (depth b)
  end.
Fixpoint highest (e : expr) : Z :=
  match e with
  | Num _ | Size _ | Nil => 0
  | Var v => Z.max 0 v
  | Read _ a | Pow a _ | Exp a | Fn _ a => highest a
  | Cons a b | Add a b | Mul a b => Z.max (highest a) (highest b)
  | Sum v n a | Max v n a => Z.max (Z.max 0 v) (Z.max (highest n) (highest a))
  | Each v n a b => Z.max (Z.max (Z.max 0 v) (highest b)) (Z.max (highest n) (highest a))
  end.
Definition canonical (bind : Z -> expr -> expr -> expr) (v : Z) (n a : expr) : expr :=
  let w := (- (depth a + 1))%Z in
  if mem w a then bind v n a else bind w n (reify (sorted (swap v w a))).

Definition largest (v : Z) (n : expr) (p : poly) : poly :=
  if mem v (reify p) then atom (canonical Max v n (reify p)) else sorted (reify p).
Definition listed (v : Z) (n a b : expr) : expr :=
  let w := (- (depth a + 1))%Z in
  if mem w a then Each v n a b else Each w n (sorted_list (swap v w a)) b.

(** ** One sum of one product *)
Definition depends (v : Z) (f : factor) : bool := mem v (fst f).
Definition sum_of_product (v : Z) (n : expr) (m : mono) : poly :=
  let (inside, outside) := partition (depends v) m in
  match inside with
  | [] => pscale 1 outside (sorted n)
  | _ => [(1, put (canonical Sum v n (reify_m inside)) 1 outside)]
  end.
Definition each_term (total : mono -> poly) (p : poly) : poly :=
  fold_right (fun t r => padd (pscale (fst t) [] (total (snd t))) r) [] p.
Fixpoint close (bs : list binder) (m : mono) : poly :=
  match bs with
  | [] => [tmul 1 m (1, [])]
  | (v, n) :: bs => each_term (sum_of_product v n) (close bs m)
  end.

(** ** Sums in a sum: joined, with new indices *)
Fixpoint pick (bs : list binder) (m : mono) : option (Z * expr * expr * mono) :=
  match m with
  | [] => None
  | (e, q) :: m' =>
      let pass := option_map (fun r => (fst r, (e, q) :: snd r)) (pick bs m') in
      match e with
      | Sum u k b =>
          if existsb (fun v => mem (fst v) e) bs && whole q && Qle_bool 1 q then
            let r := Qred (q - 1) in Some (u, k, b, if Qeq_bool r 0 then m' else (e, r) :: m')
          else pass
      | _ => pass
      end
  end.
Definition unused (bs : list binder) (m : mono) (k b : expr) : Z :=
  fold_right Z.max (Z.max (highest k) (highest b))
    (map (fun v => Z.max (fst v) (highest (snd v))) bs ++ map (fun f => highest (fst f)) m) + 1.
Fixpoint opened (fuel : nat) (bs : list binder) (m : mono) : list binder * mono :=
  match fuel with
  | O => (bs, m)
  | S fuel =>
      match pick bs m with
      | None => (bs, m)
      | Some (u, k, b, rest) =>
          let w := unused bs rest k b in
          if mem w b || mem w (reify_m rest) then (bs, m)
          else opened fuel (bs ++ [(w, k)]) (rest ++ factors (swap u w b))
      end
  end.

(** ** All orders of some sums, of which the least is taken *)
Definition apart (b c : binder) : bool :=
  negb (Z.eqb (fst b) (fst c)) && negb (mem (fst c) (snd b)) && negb (mem (fst b) (snd c)).
Fixpoint inserted (b : binder) (bs : list binder) : list (list binder) :=
  match bs with
  | [] => [[b]]
  | c :: bs' => (b :: bs) :: (if apart b c then map (cons c) (inserted b bs') else [])
  end.
Definition most_ordered : nat := 4.
Fixpoint orders (bs : list binder) : list (list binder) :=
  match bs with [] => [[]] | b :: bs => flat_map (inserted b) (orders bs) end.
Definition least (ps : list poly) (p : poly) : poly :=
  fold_left (fun a b => match cmp (reify a) (reify b) with Gt => b | _ => a end) ps p.

Definition deepest : nat := 12.
Definition sum_of_term (v : Z) (n : expr) (m : mono) : poly :=
  let (bs, fs) := opened deepest [(v, n)] m in
  if Nat.leb (length bs) most_ordered then least (map (fun o => close o fs) (orders bs)) (close bs fs)
  else close bs fs.
Definition total (v : Z) (n : expr) (p : poly) : poly := each_term (sum_of_term v n) p.

Definition norm : expr -> poly := norm_with total largest listed.

(** ** They denote what they should *)

Section Denotation.
Context {A : structure} (Inp : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den Inp).
Notation dens := (dens Inp).
Notation def := (def Inp).
Notation den_m := (den_m Inp).
Notation ok_m := (ok_m Inp).
Notation is_m := (is_m Inp).
Notation is_p := (is_p Inp).
Notation refines := (refines Inp).
Notation lists := (lists Inp).

(** A polynomial is what an expression denotes, wherever that is defined. *)
Definition represents (p : poly) (e : expr) : Prop := forall I, def I e -> is_p I p (den I e).

Lemma represents_reify p e : represents p e -> refines e (reify p).
Proof. intros H I D. destruct (reify_is Inp I p _ (H I D)). auto. Qed.
Lemma represents_refined p a b : refines a b -> represents p b -> represents p a.
Proof. intros R H I D. destruct (R I D) as [D' <-]. auto. Qed.
Lemma represents_atom e : represents (atom e) e.
Proof. intros I D. now apply atom_is. Qed.
Lemma atom_refined a b : refines a b -> represents (atom b) a.
Proof. intros H. eapply represents_refined; [exact H | apply represents_atom]. Qed.

Section Norm.
Variables total largest : Z -> expr -> poly -> poly.
Variable every : each_of.
Hypothesis total_is : forall v n p a, represents p a -> represents (total v n p) (Sum v n a).
Hypothesis largest_is : forall v n p a, represents p a -> represents (largest v n p) (Max v n a).
Hypothesis every_is : forall v n a b, lists (Each v n a b) (every v n a b).

Lemma norm_with_is e : represents (norm_with total largest every e) e /\
  lists e (norm_list total largest every e) /\
  (spread e = false -> forall I, def I e -> Forall2 (is_p I) (norm_args total largest every e) (dens I e)).
Proof.
  set (N := norm_with total largest every). set (L := norm_list total largest every).
  set (As := norm_args total largest every).
  induction e; (split; [| split; [try (intros I D; now split) | try discriminate; try (intros _ I D; exact (Forall2_nil _))]]);
    try (intros I D); try (now apply atom_is).
  - change (is_p I (if Qeq_bool q 0 then [] else [(Qred q, [])]) (num q)).
    destruct (Qeq_bool q 0) eqn:E; split; cbn; auto; [now rewrite num_zero_bool | rewrite num_red; ring].
  - destruct IHe as [_ [H _]]. destruct (H I D) as [D' E].
    replace (den I (Read x e)) with (den I (Read x (L e)))
      by (change (tensor Inp x (dens I (L e)) = tensor Inp x (dens I e)); now rewrite E).
    exact (atom_is Inp I (Read x (L e)) D').
  - destruct D as [D1 D2]. destruct IHe1 as [H1 _], IHe2 as [_ [H2 _]]. destruct (H2 I D2) as [D' E].
    destruct (represents_reify _ _ H1 I D1) as [D'' E'].
    change (def I (Cons (reify (N e1)) (L e2)) /\ dens I (Cons (reify (N e1)) (L e2)) = dens I (Cons e1 e2)).
    split; [split; [exact D'' | exact D'] |]. change (den I (reify (N e1)) :: dens I (L e2) = den I e1 :: dens I e2).
    now rewrite E, E'.
  - rename I into S. intros [D1 D2]. constructor; [now apply IHe1 | now apply IHe2].
  - destruct D. change (is_p I (padd (N e1) (N e2)) (add (den I e1) (den I e2))).
    apply padd_is; [now apply IHe1 | now apply IHe2].
  - destruct D. change (is_p I (pmul (N e1) (N e2)) (mul (den I e1) (den I e2))).
    apply pmul_is; [now apply IHe1 | now apply IHe2].
  - destruct D as [D K]. change (is_p I (ppow (N e) (Qred q)) (pw (den I e) q)).
    rewrite <- (pw_red (den I e) q). apply ppow_is; [now apply IHe | now apply ok_red].
  - change (is_p I (by_cases most_cases pexp (N e)) (exp (den I e))).
    apply by_cases_is with (g := exp); [intros; now apply pexp_is | now apply IHe].
  - change (is_p I (if spread e then atom (Fn f (L e)) else function f (As e)) (den I (Fn f e))).
    destruct D as [D K]. destruct (spread e) eqn:S.
    + destruct (proj1 (proj2 IHe) I D) as [D' E].
      replace (den I (Fn f e)) with (den I (Fn f (L e))) by (change (fn f (dens I (L e)) = fn f (dens I e)); now rewrite E).
      apply atom_is. split; [exact D' | now rewrite E].
    + apply function_is; [exact K | now apply IHe].
  - change (is_p I (total v (reify (N e1)) (N e2)) (den I (Sum v e1 e2))).
    destruct (refines_range Inp v e1 (reify (N e1)) e2 (represents_reify _ _ (proj1 IHe1))) as [R _].
    destruct (R I D) as [D' <-]. now apply total_is; [apply IHe2 |].
  - change (is_p I (largest v (reify (N e1)) (N e2)) (den I (Max v e1 e2))).
    destruct (refines_range Inp v e1 (reify (N e1)) e2 (represents_reify _ _ (proj1 IHe1))) as [_ R].
    destruct (R I D) as [D' <-]. now apply largest_is; [apply IHe2 |].
  - change (def I (every v (reify (N e1)) (L e2) (L e3)) /\ dens I (every v (reify (N e1)) (L e2) (L e3)) = dens I (Each v e1 e2 e3)).
    revert I D. apply lists_trans with (Each v (reify (N e1)) (L e2) (L e3)); [| apply every_is].
    apply lists_each; [apply represents_reify, IHe1 | apply IHe2 | apply IHe3].
Qed.
End Norm.

Lemma all_sorted e : represents (sorted e) e /\ lists e (sorted_list e).
Proof.
  unfold sorted, sorted_list. edestruct norm_with_is as (H & K & _); [| | | split; [exact H | exact K]].
  - intros v n p a H. apply atom_refined, refines_sum. now apply represents_reify.
  - intros v n p a H. apply atom_refined, refines_max. now apply represents_reify.
  - intros v n a b. apply lists_refl.
Qed.
Lemma sorted_is e : represents (sorted e) e.
Proof. apply all_sorted. Qed.
Lemma listed_is v n a b : lists (Each v n a b) (listed v n a b).
Proof.
  unfold listed. destruct (mem _ a) eqn:M; [apply lists_refl |].
  eapply lists_trans; [apply each_renamed; exact M |].
  apply lists_each; [apply refines_refl | apply all_sorted | apply lists_refl].
Qed.
Lemma canonical_sum v n a : refines (Sum v n a) (canonical Sum v n a).
Proof.
  unfold canonical. destruct (mem _ a) eqn:M; [apply refines_refl |].
  eapply refines_trans; [apply sum_renamed; exact M |]. apply refines_sum, represents_reify, sorted_is.
Qed.
Lemma canonical_max v n a : refines (Max v n a) (canonical Max v n a).
Proof.
  unfold canonical. destruct (mem _ a) eqn:M; [apply refines_refl |].
  eapply refines_trans; [apply max_renamed; exact M |]. apply refines_max, represents_reify, sorted_is.
Qed.
Lemma largest_is v n p a : represents p a -> represents (largest v n p) (Max v n a).
Proof.
  intros H. unfold largest. destruct (mem v (reify p)) eqn:M.
  - apply atom_refined. eapply refines_trans; [| apply canonical_max]. now apply refines_max, represents_reify.
  - eapply represents_refined; [| apply sorted_is].
    eapply refines_trans; [apply refines_max, represents_reify, H | now apply max_of_constant].
Qed.

(** *** One sum *)
Lemma reify_m_def I m : ok_m I m -> def I (reify_m m) /\ den I (reify_m m) = den_m I m.
Proof. intros O. now apply (reify_m_is Inp I m). Qed.

Lemma reify_m_ok I m : def I (reify_m m) -> ok_m I m.
Proof.
  assert (H : forall e q, def I (reify_f (e, q)) -> def I e /\ ok (den I e) q).
  { intros e q. unfold reify_f. cbn. destruct (Qeq_bool q 1) eqn:E; auto. intros D. split; auto.
    apply Qeq_bool_eq in E. apply (ok_eq _ 1); [now symmetry | apply ok_1]. }
  induction m as [| [e q] m IH]; intros D; [exact Logic.I |].
  destruct m as [| f m]; [split; [now apply H | exact Logic.I] |].
  destruct D as [D D']. split; [now apply H | now apply IH].
Qed.

(** The sum of a monomial, as [Sum v n (reify_m m)] where that is defined *)
Definition sums (q : poly) (v : Z) (n : expr) (m : mono) : Prop :=
  forall I, def I n -> sized (den I n) ->
    (forall i, (i < count (den I n))%nat -> ok_m (set I v (at_index i)) m) ->
    is_p I q (sum (count (den I n)) (fun i => den_m (set I v (at_index i)) m)).

Lemma sums_reify v n m q : represents q (Sum v n (reify_m m)) -> sums q v n m.
Proof.
  intros H I D S O. replace (sum _ _) with (den I (Sum v n (reify_m m))).
  - apply H. cbn. split; [exact D | split; [exact S |]]. intros i L. now apply reify_m_def, O.
  - cbn. apply sum_ext. intros i L. now apply reify_m_def, O.
Qed.
Lemma without_m I v x m : forallb (fun f => negb (mem v (fst f))) m = true ->
  (ok_m (set I v x) m <-> ok_m I m) /\ den_m (set I v x) m = den_m I m.
Proof.
  induction m as [| [e q] m IH]; cbn; [easy |]. intros H. apply andb_prop in H as [H H'].
  rewrite negb_true_iff in H. destruct (IH H') as [O E].
  rewrite (den_without Inp I v x e H), (def_without Inp I v x e H), O, E. easy.
Qed.
Lemma partition_by (f : factor -> bool) m :
  let (p, r) := partition f m in forallb (fun g => negb (f g)) r = true.
Proof.
  induction m as [| g m IH]; cbn; auto. destruct (partition f m) as [p r]. destruct (f g) eqn:E; cbn; auto.
  now rewrite E.
Qed.
Lemma sum_of_product_is v n m : sums (sum_of_product v n m) v n m.
Proof.
  intros I D S O. unfold sum_of_product. pose proof (partition_by (depends v) m) as Out.
  assert (Parts : forall i, (i < count (den I n))%nat -> let (p, r) := partition (depends v) m in
    ok_m (set I v (at_index i)) p /\ ok_m I r /\
    den_m (set I v (at_index i)) m = mul (den_m I r) (den_m (set I v (at_index i)) p)).
  { intros i L. pose proof (partition_is Inp (set I v (at_index i)) (depends v) m (O i L)) as P.
    destruct (partition (depends v) m) as [p r]. destruct P as (_ & Op & Or & E).
    destruct (without_m I v (at_index i) r Out) as [Or' Er]. rewrite E, Er. repeat split; auto; [now apply Or' | ring]. }
  destruct (partition (depends v) m) as [p r].
  assert (Or : ok_m I r) by (apply (Parts 0%nat); apply S).
  assert (E : sum (count (den I n)) (fun i => den_m (set I v (at_index i)) m) =
    mul (den_m I r) (sum (count (den I n)) (fun i => den_m (set I v (at_index i)) p))).
  { rewrite <- sum_mul. apply sum_ext. intros i L. now apply Parts. }
  rewrite E. destruct p as [| g p].
  - replace (mul (den_m I r) _) with (mul (mul (num 1) (den_m I r)) (den I n)).
    + apply pscale_is; [now split |]. now apply sorted_is.
    + destruct S as [S _]. cbn. rewrite sum_constant, <- S, num_1. ring.
  - assert (Dp : def I (Sum v n (reify_m (g :: p)))).
    { split; [exact D | split; [exact S |]]. intros i L. now apply reify_m_def, Parts. }
    destruct (canonical_sum v n (reify_m (g :: p)) I Dp) as [Dc Ec].
    replace (mul (den_m I r) _) with (mul (num 1) (mul (pw (den I (canonical Sum v n (reify_m (g :: p)))) 1) (den_m I r))).
    + apply term_is, put_is; auto; [apply ok_1 | now split].
    + rewrite pw_1, Ec, num_1. cbn [Expressions.den].
      rewrite (sum_ext _ (fun i => den (set I v (at_index i)) (reify_m (g :: p)))
        (fun i => den_m (set I v (at_index i)) (g :: p))); [ring |]. intros i L. now apply reify_m_def, Parts.
Qed.
Lemma each_term_is (one : mono -> poly) v n p a : (forall m, sums (one m) v n m) ->
  represents p a -> represents (each_term one p) (Sum v n a).
Proof.
  intros H R I (D & S & K).
  assert (G : forall p (f : nat -> A), (forall i, (i < count (den I n))%nat -> is_p (set I v (at_index i)) p (f i)) ->
    is_p I (each_term one p) (sum (count (den I n)) f)).
  { clear p R. induction p as [| [c m] p IH]; intros f P; cbn [each_term fold_right].
    - split; cbn; auto. rewrite <- (sum_zero (count (den I n))). apply sum_ext. intros i L. now apply P.
    - set (g := fun i => den_m (set I v (at_index i)) m). set (h := fun i => den_p Inp (set I v (at_index i)) p).
      replace (sum _ f) with (add (mul (mul (num c) Structures.one) (sum (count (den I n)) g)) (sum (count (den I n)) h)).
      + apply padd_is; [apply pscale_is; [now split |]; apply H; auto; intros i L; now apply P |].
        apply IH. intros i L. split; auto. now apply P.
      + replace (mul (mul (num c) Structures.one) (sum (count (den I n)) g))
          with (mul (num c) (sum (count (den I n)) g)) by ring.
        rewrite <- sum_mul, <- sum_add. apply sum_ext. intros i L. now apply P. }
  apply G. intros i L. now apply R, K.
Qed.
Lemma one_term I t x : ok_m I (snd t) -> mul (num (fst t)) (den_m I (snd t)) = x -> is_p I [t] x.
Proof. destruct t as [c m]. intros O <-. now apply term_is. Qed.
Lemma close_is bs m : represents (close bs m) (wrap bs (reify_m m)).
Proof.
  induction bs as [| [v n] bs IH]; cbn [close wrap].
  - intros I D. apply reify_m_ok in D. rewrite (proj2 (reify_m_def I m D)).
    destruct (tmul_is Inp I 1 m 1 [] D Logic.I) as [O E]. apply one_term; [exact O |].
    etransitivity; [exact E |]. rewrite num_1. cbn. ring.
  - apply each_term_is; auto. intros m'. apply sum_of_product_is.
Qed.

(** *** Sums that are joined *)
Lemma refines_wrap bs a b : refines a b -> refines (wrap bs a) (wrap bs b).
Proof. intros H. induction bs as [| [v n] bs IH]; cbn; auto. now apply refines_sum. Qed.
Lemma wrap_app bs cs e : wrap (bs ++ cs) e = wrap bs (wrap cs e).
Proof. induction bs as [| [v n] bs IH]; cbn; auto. now rewrite IH. Qed.
Lemma pick_is bs m : forall u k b rest, pick bs m = Some (u, k, b, rest) -> forall I, ok_m I m ->
  def I (Sum u k b) /\ ok_m I rest /\ den_m I m = mul (den I (Sum u k b)) (den_m I rest).
Proof.
  induction m as [| [e q] m IH]; cbn [pick]; intros u k b rest H I O; [discriminate |].
  destruct O as [[D K] O].
  assert (Pass : option_map (fun r => (fst r, (e, q) :: snd r)) (pick bs m) = Some (u, k, b, rest) ->
    def I (Sum u k b) /\ ok_m I rest /\ mul (pw (den I e) q) (den_m I m) = mul (den I (Sum u k b)) (den_m I rest)).
  { destruct (pick bs m) as [[[[u' k'] b'] r'] |]; [| discriminate]. cbn. intros [= -> -> -> <-].
    destruct (IH _ _ _ _ eq_refl I O) as (D' & O' & E). split; [exact D' | split; [cbn; auto |]].
    rewrite E. cbn. ring. }
  destruct e as [| | | | | | | | | | | u' k' b' | |]; try (now apply Pass).
  match type of H with (if ?c then _ else _) = _ => destruct c eqn:C; [| now apply Pass] end.
  apply andb_prop in C as [_ L]. apply Qle_bool_iff in L. injection H as -> -> -> <-.
  set (s := Sum u k b) in *. assert (S := pw_minus (den I s) q 1 K (ok_1 _) L).
  rewrite <- (pw_red _ (q - 1)), pw_1 in S. split; [exact D |].
  destruct (Qeq_bool (Qred (q - 1)) 0) eqn:Z.
  - apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0 in S. split; auto.
    change (mul (pw (den I s) q) (den_m I m) = mul (den I s) (den_m I m)). rewrite S. ring.
  - split; [split; auto; split; auto; apply ok_red, ok_minus; auto; apply ok_1 |].
    change (mul (pw (den I s) q) (den_m I m) = mul (den I s) (mul (pw (den I s) (Qred (q - 1))) (den_m I m))).
    rewrite S. ring.
Qed.
Lemma opened_is fuel : forall bs m,
  refines (wrap bs (reify_m m)) (wrap (fst (opened fuel bs m)) (reify_m (snd (opened fuel bs m)))).
Proof.
  induction fuel as [| fuel IH]; intros bs m; cbn [opened]; [apply refines_refl |].
  destruct (pick bs m) as [[[[u k] b] rest] |] eqn:P; [| apply refines_refl].
  set (w := unused bs rest k b). destruct (mem w b || mem w (reify_m rest)) eqn:M; [apply refines_refl |].
  apply orb_false_iff in M as [Mb Mr]. eapply refines_trans; [| apply IH].
  rewrite wrap_app. apply refines_wrap. cbn [wrap].
  eapply refines_trans; [| apply refines_sum with (a := Mul (reify_m rest) (swap u w b))].
  - eapply refines_trans; [| now apply sum_in].
    eapply refines_trans; [| apply refines_mul; [apply refines_refl | now apply sum_renamed]].
    intros I D. apply reify_m_ok in D. destruct (pick_is bs m u k b rest P I D) as (D' & O & E).
    destruct (reify_m_def I rest O) as [Dr Er]. rewrite (proj2 (reify_m_def I m D)), E. split; [now split |].
    change (mul (den I (reify_m rest)) (den I (Sum u k b)) = mul (den I (Sum u k b)) (den_m I rest)).
    rewrite Er. ring.
  - intros I [Dr Db]. apply reify_m_ok in Dr.
    destruct (app_is Inp I rest (factors (swap u w b)) _ _ (conj Dr eq_refl) (factors_is Inp I _ Db)) as [O E].
    destruct (reify_m_def I _ O) as [D' E']. split; auto. rewrite E', E. cbn.
    now rewrite (proj2 (reify_m_def I rest Dr)).
Qed.

(** *** Orders of sums *)
Lemma inserted_is b bs : forall cs, In cs (inserted b bs) -> forall e, refines (wrap (b :: bs) e) (wrap cs e).
Proof.
  destruct b as [v n]. induction bs as [| [u k] bs IH]; cbn [inserted]; intros cs Hc e.
  - destruct Hc as [<- | []]. apply refines_refl.
  - destruct Hc as [<- | Hc]; [apply refines_refl |].
    destruct (apart (v, n) (u, k)) eqn:Ap; [| contradiction]. apply in_map_iff in Hc as (ds & <- & Hd).
    unfold apart in Ap. cbn in Ap. rewrite !andb_true_iff, !negb_true_iff in Ap. destruct Ap as [[N Mn] Mk].
    apply Z.eqb_neq in N. cbn [wrap]. eapply refines_trans; [now apply sum_exchange |].
    apply refines_sum. exact (IH ds Hd e).
Qed.
Lemma orders_is bs : forall cs, In cs (orders bs) -> forall e, refines (wrap bs e) (wrap cs e).
Proof.
  induction bs as [| [v n] bs IH]; cbn [orders]; intros cs Hc e.
  - destruct Hc as [<- | []]. apply refines_refl.
  - apply in_flat_map in Hc as (ds & Hd & Hc). eapply refines_trans; [| apply (inserted_is _ _ _ Hc)].
    cbn [wrap]. apply refines_sum. now apply IH.
Qed.
Lemma least_is (P : poly -> Prop) ps : forall p, P p -> (forall q, In q ps -> P q) -> P (least ps p).
Proof.
  unfold least. induction ps as [| q ps IH]; cbn; intros p H K; auto. apply IH; auto.
  destruct (cmp _ _); auto.
Qed.
Lemma sum_of_term_is v n m : sums (sum_of_term v n m) v n m.
Proof.
  apply sums_reify. unfold sum_of_term. pose proof (opened_is deepest [(v, n)] m) as R.
  destruct (opened deepest [(v, n)] m) as [bs fs]. cbn [fst snd wrap] in R.
  eapply represents_refined; [exact R |]. destruct (Nat.leb _ _); [| apply close_is].
  apply least_is; [apply close_is |]. intros q Hq. apply in_map_iff in Hq as (o & <- & Ho).
  eapply represents_refined; [apply (orders_is bs o Ho) | apply close_is].
Qed.
Lemma total_is v n p a : represents p a -> represents (total v n p) (Sum v n a).
Proof. intros H. apply each_term_is; auto. intros m. apply sum_of_term_is. Qed.

Theorem norm_is e : represents (norm e) e.
Proof. apply norm_with_is; [exact total_is | exact largest_is | exact listed_is]. Qed.
End Denotation.
